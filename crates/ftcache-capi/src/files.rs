//! Banks read from files into memory of the library's, and pinned there.

use std::ffi::{c_char, c_void};
use std::ops::ControlFlow;
use std::path::PathBuf;

use ftcache_core::policy::Model;
use ftcache_core::transfer::{Direct, Pinning, Progress, Refusal, Residence};
use ftcache_core::{ArenaOptions, BankId, BankSource, HostArena, LayerId};

use crate::boundary::{SizedStruct, array, flag, read_sized, text, write_sized, write_text};
use crate::cache::{enter, ftcache};
use crate::failure::Failure;
use crate::settings::not_a;
use crate::status::ftcache_status;

/// Whether reads go past the system's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_direct {
    /// Where the file system has it; the text of the load says where it has not, and why.
    Try = 0,
    /// Never.
    Never = 1,
    /// Always, or it is an error.
    Require = 2,
}

/// What follows when pinning is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_refusal {
    /// An error; everything is undone.
    Fail = 0,
    /// The layer stays unpinned, and so do those after it: it goes through the bounce buffer, or is for the CPU.
    Serve = 1,
}

/// How the memory of a layer is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_residence {
    /// The system may page it out.
    Pageable = 0,
    /// Locked in memory, unknown to the device.
    Locked = 1,
    /// Registered with the device.
    Pinned = 2,
}

/// Where one row lies. This struct will not grow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_file_row {
    /// Index in the list of files.
    pub file: u64,
    /// Bytes from the file's start.
    pub offset: u64,
}

/// One bank of one layer, and where its rows lie. This struct will not grow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_file_bank {
    /// The layer.
    pub layer: u32,
    /// The bank.
    pub bank: u32,
    /// Where all rows lie one after the other, as a tensor of a GGUF file does; not looked at if rows is not NULL.
    pub first: ftcache_file_row,
    /// One entry for each expert, if every row lies somewhere of its own, as those of a safetensors file do; else NULL.
    pub rows: *const ftcache_file_row,
}

/// Told how far a load is, by the thread that called. Returns 0 to go on; anything else stops the load.
pub type ftcache_progress =
    Option<unsafe extern "C" fn(user: *mut c_void, read_bytes: u64, total_bytes: u64, pinned_bytes: u64) -> u32>;

/// How banks are read and pinned. All zeros pins every layer, with four threads that read past the page cache where
/// they can.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_file_options {
    /// sizeof(ftcache_file_options).
    pub struct_size: u32,
    /// Threads that read; 0 means 4.
    pub reader_count: u32,
    /// An ftcache_direct.
    pub direct: u32,
    /// An ftcache_refusal.
    pub refusal: u32,
    /// 1: nothing is pinned.
    pub no_pinning: u32,
    /// 1: what is not pinned is locked in memory, where the system allows it.
    pub lock: u32,
    /// The most bytes that are pinned, layer by layer in the order of banks; 0 means no limit.
    pub pin_bytes: u64,
    /// Layers that the CPU computes, which are never pinned; NULL if none.
    pub cpu_layers: *const u32,
    /// How many.
    pub cpu_layer_count: u64,
    /// NULL if nothing is to be told.
    pub progress: ftcache_progress,
    /// Given to it.
    pub progress_user: *mut c_void,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer and of the callback, and
// that another value is a function is the caller's word.
unsafe impl SizedStruct for ftcache_file_options {}

/// What a load came to.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_file_report {
    /// sizeof(ftcache_file_report), set by the caller.
    pub struct_size: u32,
    /// Layers that were read.
    pub layer_count: u32,
    /// Of these, layers that are pinned.
    pub pinned_layer_count: u32,
    /// Of these, layers that are locked and not pinned.
    pub locked_layer_count: u32,
    /// Bytes of all rows.
    pub bytes: u64,
    /// Bytes of the pages that are pinned.
    pub pinned_bytes: u64,
    /// Microseconds until the last byte was read.
    pub read_us: u64,
    /// Microseconds spent in pinning, most of it while others read.
    pub pin_us: u64,
    /// Microseconds from the start to the end.
    pub total_us: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_file_report {}

/// # Safety
///
/// The pointers of `given` are as the header says of them.
unsafe fn options_of(given: &ftcache_file_options) -> Result<ArenaOptions, Failure> {
    let mut options = ArenaOptions::default();
    if given.reader_count > 0 {
        options.reader_count = given.reader_count as usize;
    }
    options.direct = match given.direct {
        direct if direct == ftcache_direct::Try as u32 => Direct::Try,
        direct if direct == ftcache_direct::Never as u32 => Direct::Never,
        direct if direct == ftcache_direct::Require as u32 => Direct::Require,
        other => return Err(not_a("options->direct", other, "ftcache_direct")),
    };
    options.refusal = match given.refusal {
        refusal if refusal == ftcache_refusal::Fail as u32 => Refusal::Fail,
        refusal if refusal == ftcache_refusal::Serve as u32 => Refusal::Serve,
        other => return Err(not_a("options->refusal", other, "ftcache_refusal")),
    };
    options.pinning = match (flag(given.no_pinning, "options->no_pinning")?, given.pin_bytes) {
        (true, 0) => Pinning::None,
        (true, bytes) => {
            return Err(Failure::argument(format!("options->pin_bytes is {bytes}, and no_pinning is 1")));
        }
        (false, 0) => Pinning::All,
        (false, bytes) => Pinning::Budget(bytes),
    };
    options.lock = flag(given.lock, "options->lock")?;
    // SAFETY: as many numbers as the count says, by this function's own promise.
    let layers = unsafe { array(given.cpu_layers, given.cpu_layer_count, "options->cpu_layers") }?;
    options.cpu_layers = layers.iter().copied().map(LayerId::new).collect();
    Ok(options)
}

/// # Safety
///
/// The bank's `rows` is NULL or has an entry for each expert.
unsafe fn source_of(bank: &ftcache_file_bank, model: &Model) -> Result<BankSource, Failure> {
    let (layer, id) = (LayerId::new(bank.layer), BankId::new(bank.bank));
    let (layer_count, bank_count) = (model.layer_count(), model.bank_count());
    if layer.index() >= layer_count {
        return Err(Failure::range(format!("no layer {layer}: the model has {layer_count} layers")));
    }
    if id.index() >= bank_count {
        return Err(Failure::range(format!("no bank {id}: the model has {bank_count} banks")));
    }
    let row_bytes = model.row_bytes(layer, id);
    let place = |row: &ftcache_file_row| (usize::try_from(row.file).unwrap_or(usize::MAX), row.offset);
    if bank.rows.is_null() {
        let (file, offset) = place(&bank.first);
        return Ok(BankSource::contiguous(layer, id, row_bytes, model.expert_count(), file, offset));
    }
    // SAFETY: by this function's own promise.
    let rows = unsafe { array(bank.rows, u64::from(model.expert_count()), "banks->rows") }?;
    Ok(BankSource::scattered(layer, id, row_bytes, rows.iter().map(place)))
}

/// Reads banks from files into memory of the library's, pins them, attaches them and keeps them until the cache is
/// freed. May be called again for others. Allocates and blocks; uses threads of its own while it lasts.
///
/// Layers that could not be pinned go through the bounce buffer; where there is none they are not attached, and are for
/// the CPU: ftcache_layer_get says so. options may be NULL; report is NULL or set to what it came to. On any error
/// nothing is left of it.
///
/// # Safety
///
/// cache came from ftcache_new; paths points to path_count texts, banks to bank_count entries that are as
/// they say; options and report are NULL or point to structs of their struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_load_files(
    cache: *mut ftcache,
    paths: *const *const c_char,
    path_count: u64,
    banks: *const ftcache_file_bank,
    bank_count: u64,
    options: *const ftcache_file_options,
    report: *mut ftcache_file_report,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let given = match options.is_null() {
            // SAFETY: any bytes are a value of it, all zeros too (`SizedStruct`).
            true => unsafe { std::mem::zeroed() },
            // SAFETY: points to a struct of its size by the caller's word.
            false => unsafe { read_sized(options, "options") }?,
        };
        // SAFETY: its pointers are as the header says, by the caller's word.
        let options = unsafe { options_of(&given) }?;
        if !report.is_null() {
            // SAFETY: points to a struct of its size by the caller's word.
            unsafe { crate::boundary::check_sized(report, "report") }?;
        }
        // SAFETY: `path_count` texts by the caller's word.
        let texts = unsafe { array(paths, path_count, "paths") }?;
        let mut paths = Vec::new();
        for (index, path) in texts.iter().enumerate() {
            // SAFETY: a text by the caller's word.
            let path = unsafe { text(*path, "paths") }?;
            let path = path.ok_or_else(|| Failure::argument(format!("paths[{index}] is NULL")))?;
            paths.push(PathBuf::from(path));
        }
        // SAFETY: `bank_count` entries by the caller's word.
        let banks = unsafe { array(banks, bank_count, "banks") }?;
        if banks.is_empty() {
            return Err(Failure::argument("bank_count is 0; at least 1 bank is to be read"));
        }
        let mut sources = Vec::new();
        for bank in banks {
            // SAFETY: its rows are as the header says, by the caller's word.
            sources.push(unsafe { source_of(bank, handle.configuration.geometry().model()) }?);
        }
        let cache = handle.on_device()?;
        let reservation = HostArena::reserve(&sources, &paths, options)?;
        let tell = |progress: Progress| {
            let Some(callback) = given.progress else { return ControlFlow::Continue(()) };
            let Progress { read_bytes, total_bytes, pinned_bytes, .. } = progress;
            // SAFETY: by the header's words on `ftcache_progress`.
            match unsafe { callback(given.progress_user, read_bytes, total_bytes, pinned_bytes) } {
                0 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        };
        let loaded = cache.load_arena(reservation, tell)?;
        tracing::info!("{loaded}");
        let microseconds = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let value = ftcache_file_report {
            struct_size: 0,
            layer_count: loaded.layers.len() as u32,
            pinned_layer_count: loaded.layer_count(Residence::Pinned) as u32,
            locked_layer_count: loaded.layer_count(Residence::Locked) as u32,
            bytes: loaded.bytes(),
            pinned_bytes: loaded.page_bytes(Residence::Pinned),
            read_us: microseconds(loaded.read_time),
            pin_us: microseconds(loaded.pin_time),
            total_us: microseconds(loaded.total_time),
        };
        if report.is_null() {
            return Ok(());
        }
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(report, "report", value) }
    })
}

/// How a layer that was read from files is kept: residence is set to an ftcache_residence. The text says why, if it is
/// not pinned; it is cut to fit and ended by a zero, and buffer may be NULL if capacity is 0. Allocates; waits for
/// nothing.
///
/// # Safety
///
/// cache came from ftcache_new; residence points to a uint32_t; buffer points to capacity writable bytes.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_layer_residence(
    cache: *mut ftcache,
    layer: u32,
    residence: *mut u32,
    buffer: *mut c_char,
    capacity: usize,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: points to a number by the caller's word.
        let residence = unsafe { crate::boundary::required_mut(residence, "residence") }?;
        let id = LayerId::new(layer);
        let arenas = handle.on_device()?.host_arenas();
        let reports = arenas.iter().flat_map(|arena| &arena.report().layers);
        let found = reports.rev().find(|report| report.layer == id);
        let found = found.ok_or_else(|| Failure::range(format!("layer {layer} was not read from files")))?;
        let why = found.unpinned.map_or(String::new(), |why| why.to_string());
        // SAFETY: the caller gives `capacity` writable bytes, as the header says.
        unsafe { write_text(&why, buffer, capacity, std::ptr::null_mut()) }?;
        *residence = match found.residence {
            Residence::Pageable => ftcache_residence::Pageable,
            Residence::Locked => ftcache_residence::Locked,
            Residence::Pinned => ftcache_residence::Pinned,
        } as u32;
        Ok(())
    })
}
