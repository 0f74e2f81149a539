//! What tests steer the emulated driver with: a typed face of the control calls.
//!
//! A test links this and loads the library beside it, as the program under test does; all state is in the loaded copy.
//! This is test code: what cannot be is a panic with a sentence.
//!
//! *Unsafe*, relying on the library having been built from the same sources: the types of its symbols are those here.

use std::ffi::{CString, c_char, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use libloading::Library;

use crate::launches::LaunchCounts;
use crate::settings::RawConfig;
pub use crate::settings::{Batch, Config, Counts};

pub(crate) type Sink = extern "C" fn(*mut c_void, *const u8, usize);
pub(crate) type Callback = extern "C" fn(*mut c_void);

macro_rules! control_calls {
    ($($field:ident = $symbol:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The control calls of the loaded library.
        #[derive(Debug)]
        struct Control {
            library: Library,
            $($field: extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Control {
            fn load(library: Library) -> Self {
                $(
                    // SAFETY: the library was built from these sources, where the symbol has this type.
                    let symbol = unsafe { library.get(concat!(stringify!($symbol), "\0").as_bytes()) };
                    let $field: libloading::Symbol<'_, extern "C" fn($($argument),*) $(-> $result)?> =
                        symbol.unwrap_or_else(|error| panic!("{}: {error}", stringify!($symbol)));
                    let $field = *$field;
                )*
                Self { library, $($field,)* }
            }
        }
    };
}

control_calls! {
    create = ftcache_emu_create: fn(*const RawConfig) -> i32;
    destroy = ftcache_emu_destroy: fn(i32);
    set_seed = ftcache_emu_set_seed: fn(i32, u64);
    set_memory_bytes = ftcache_emu_set_memory_bytes: fn(i32, u64);
    set_batch = ftcache_emu_set_batch: fn(i32, u32, u64);
    set_attribute = ftcache_emu_set_attribute: fn(i32, i32, i32);
    fail_call = ftcache_emu_fail_call: fn(i32, *const c_char, u64, i32);
    fail_late = ftcache_emu_fail_late: fn(i32, u64, i32);
    calls = ftcache_emu_calls: fn(i32, *const c_char) -> u64;
    blocking_calls = ftcache_emu_blocking_calls: fn(i32) -> u64;
    counts = ftcache_emu_counts: fn(i32, *mut Counts);
    reports = ftcache_emu_reports: fn(i32, u32, Sink, *mut c_void);
    report = ftcache_emu_report: fn(i32, *const u8, usize);
    launch = ftcache_emu_launch: fn(i32, u64, *const (u64, u64), usize, *const (u64, u64), usize, Callback, Callback,
        *mut c_void, u32) -> i32;
    skip_barrier = ftcache_emu_skip_barrier: fn(i32, *const c_char, i32) -> u32;
    launch_counts = ftcache_emu_launch_counts: fn(i32, *const c_char, *mut LaunchCounts) -> u32;
    abi = ftcache_emu_abi: fn(Sink, *mut c_void);
    set_driver_version = ftcache_emu_set_driver_version: fn(i32, i32);
    host_access = ftcache_emu_host_access: fn(i32, u64, u64, u32);
    hand_over = ftcache_emu_hand_over: fn(i32);
    peek = ftcache_emu_peek: fn(i32, u64, usize, *mut u8) -> i32;
}

/// The loaded library.
#[derive(Clone, Copy, Debug)]
pub struct Emulator {
    control: &'static Control,
}

impl Emulator {
    /// The library that cargo built: beside the test executable, or one folder up.
    pub fn library_path() -> PathBuf {
        let name = format!("{}ftcache_cuda_emu{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        let executable = std::env::current_exe().expect("the path of this executable");
        let folders = executable.ancestors().skip(1).take(2);
        let candidates: Vec<PathBuf> =
            folders.flat_map(|folder| [folder.join(&name), folder.join("deps").join(&name)]).collect();
        let found = candidates.iter().find(|path| path.exists());
        found
            .unwrap_or_else(|| panic!("the emulated driver is at none of {candidates:?}: build ftcache-cuda-emu"))
            .clone()
    }

    /// Loads the library, once in a process.
    pub fn open() -> Self {
        static CONTROL: OnceLock<Control> = OnceLock::new();
        let control = CONTROL.get_or_init(|| {
            let path = Self::library_path();
            // SAFETY: loading it runs no code of its own.
            let library = unsafe { Library::new(&path) };
            Control::load(library.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
        });
        Self { control }
    }

    /// The library, for the driver's own symbols.
    pub fn library(&self) -> &'static Library {
        &self.control.library
    }

    /// What kernels are compiled with: the size of each struct of `kernels/abi.h` by its name, the offset of each field
    /// as `Struct.field`, and the value of each constant.
    pub fn abi(&self) -> Vec<(String, u64)> {
        let mut lines = Vec::<String>::new();
        (self.control.abi)(push_report, (&raw mut lines).cast());
        let number = |line: &String| {
            let (name, number) = line.split_once(' ').expect("a name and a number");
            (name.to_owned(), number.parse().expect("a number"))
        };
        lines.iter().map(number).collect()
    }

    /// Makes a device.
    pub fn device(&self, config: Config) -> EmulatedDevice {
        let attributes: Vec<[i32; 2]> = config.attributes.iter().map(|&(number, value)| [number, value]).collect();
        let raw = RawConfig::new(&config, &attributes);
        let ordinal = (self.control.create)(&raw);
        EmulatedDevice { control: self.control, ordinal, seed: config.seed }
    }
}

/// A device of the emulated driver, gone when this is dropped.
#[derive(Debug)]
pub struct EmulatedDevice {
    control: &'static Control,
    ordinal: i32,
    seed: u64,
}

/// What a device knows of a kernel's launches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchReport {
    /// Launches that have run.
    pub launches: u64,
    /// Barriers of the whole block that one block of one launch has passed, the most of all.
    pub barriers_most: u64,
    /// The same of the last launch.
    pub barriers_last: u64,
    /// The numbers of the barriers that were met, ascending.
    pub barrier_ids: Vec<u32>,
}

/// A kernel's body on its way through the library.
struct Body {
    control: &'static Control,
    ordinal: i32,
    code: Code,
}

enum Code {
    Once(Mutex<Option<Box<dyn FnOnce() + Send>>>),
    Often(Box<dyn Fn() + Send + Sync>),
}

extern "C" fn call_body(data: *mut c_void) {
    // SAFETY: the box that `launch` gave away, alive until `drop_body`.
    let body = unsafe { &*data.cast::<Body>() };
    let run = || match &body.code {
        Code::Once(code) => {
            let code = code.lock().ok().and_then(|mut code| code.take());
            code.expect("the library runs this once")();
        }
        Code::Often(code) => code(),
    };
    // A panic must not cross into the library, and must not be lost either.
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        let text = format!("a kernel panicked: {}", text.unwrap_or("without words"));
        (body.control.report)(body.ordinal, text.as_ptr(), text.len());
    }
}

extern "C" fn drop_body(data: *mut c_void) {
    // SAFETY: the box that `launch` gave away; the library calls this once, at the end.
    drop(unsafe { Box::from_raw(data.cast::<Body>()) });
}

extern "C" fn push_report(data: *mut c_void, text: *const u8, bytes: usize) {
    // SAFETY: the list that `reports` lent for the time of the call.
    let reports = unsafe { &mut *data.cast::<Vec<String>>() };
    // SAFETY: the library lends a text of this length.
    let text = unsafe { std::slice::from_raw_parts(text, bytes) };
    reports.push(String::from_utf8_lossy(text).into_owned());
}

impl EmulatedDevice {
    /// The ordinal that the driver knows the device by.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// The seed it was made with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Starts the generator of choices anew.
    pub fn set_seed(&self, seed: u64) {
        (self.control.set_seed)(self.ordinal, seed);
    }

    /// Changes the size of the memory; it may be less than what is allocated.
    pub fn set_memory_bytes(&self, bytes: u64) {
        (self.control.set_memory_bytes)(self.ordinal, bytes);
    }

    /// Changes how batch calls work.
    pub fn set_batch(&self, batch: Batch) {
        let (kind, value) = batch.to_raw();
        (self.control.set_batch)(self.ordinal, kind, value);
    }

    /// Changes the value of a device attribute.
    pub fn set_attribute(&self, attribute: i32, value: i32) {
        (self.control.set_attribute)(self.ordinal, attribute, value);
    }

    /// Lets a call of the driver fail once, after this many more of its name: it does nothing and gives the code.
    pub fn fail_call(&self, name: &str, after: u64, code: i32) {
        let name = CString::new(name).expect("a name without zeros");
        (self.control.fail_call)(self.ordinal, name.as_ptr(), after, code);
    }

    /// Lets a copy, fill or launch fail when it runs, after this many more to be enqueued: it does nothing, and from
    /// then on every call in its context gives the code.
    pub fn fail_late(&self, after: u64, code: i32) {
        (self.control.fail_late)(self.ordinal, after, code);
    }

    /// Calls of this name.
    pub fn calls(&self, name: &str) -> u64 {
        let name = CString::new(name).expect("a name without zeros");
        (self.control.calls)(self.ordinal, name.as_ptr())
    }

    /// Calls of the driver.
    pub fn calls_total(&self) -> u64 {
        (self.control.calls)(self.ordinal, std::ptr::null())
    }

    /// Calls that had to wait for queued work.
    pub fn blocking_calls(&self) -> u64 {
        (self.control.blocking_calls)(self.ordinal)
    }

    /// What the device holds.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        (self.control.counts)(self.ordinal, &mut counts);
        counts
    }

    fn reports(&self, kind: u32) -> Vec<String> {
        let mut reports = Vec::<String>::new();
        (self.control.reports)(self.ordinal, kind, push_report, (&raw mut reports).cast());
        reports
    }

    /// Conflicts found since this was last asked: unordered operations that touch the same bytes.
    pub fn races(&self) -> Vec<String> {
        self.reports(0)
    }

    /// Misuse found since this was last asked.
    pub fn violations(&self) -> Vec<String> {
        self.reports(1)
    }

    /// Red zones that are damaged and freed memory that was written.
    pub fn damage(&self) -> Vec<String> {
        self.reports(2)
    }

    /// Panics if there are reports of any kind.
    #[track_caller]
    pub fn check(&self) {
        let (races, violations, damage) = (self.races(), self.violations(), self.damage());
        let all: Vec<String> = [("race", races), ("violation", violations), ("damage", damage)]
            .into_iter()
            .flat_map(|(kind, texts)| texts.into_iter().map(move |text| format!("{kind}: {text}")))
            .collect();
        assert!(all.is_empty(), "seed {}, device {}:\n{}", self.seed, self.ordinal, all.join("\n"));
    }

    /// A kernel: runs `body` in the stream's order. It reads and writes the ranges, each an address and bytes.
    ///
    /// The body must not call the driver, and must be done before the stream is waited for: nothing runs it later.
    pub fn launch(
        &self,
        stream: u64,
        reads: &[(u64, u64)],
        writes: &[(u64, u64)],
        body: impl FnOnce() + Send + 'static,
    ) -> i32 {
        self.launch_code(stream, reads, writes, Code::Once(Mutex::new(Some(Box::new(body)))))
    }

    /// A kernel that may be captured and so run several times.
    pub fn launch_often(
        &self,
        stream: u64,
        reads: &[(u64, u64)],
        writes: &[(u64, u64)],
        body: impl Fn() + Send + Sync + 'static,
    ) -> i32 {
        self.launch_code(stream, reads, writes, Code::Often(Box::new(body)))
    }

    fn launch_code(&self, stream: u64, reads: &[(u64, u64)], writes: &[(u64, u64)], code: Code) -> i32 {
        let once = matches!(code, Code::Once(_)).into();
        let body = Box::into_raw(Box::new(Body { control: self.control, ordinal: self.ordinal, code }));
        let (reads, read_count) = (reads.as_ptr(), reads.len());
        let (writes, write_count) = (writes.as_ptr(), writes.len());
        let (ordinal, data) = (self.ordinal, body.cast());
        let launch = self.control.launch;
        launch(ordinal, stream, reads, read_count, writes, write_count, call_body, drop_body, data, once)
    }

    /// Leaves a barrier of a kernel out: threads go through it from now on without waiting. It takes the place of the
    /// one left out before; `None` leaves none out.
    #[track_caller]
    pub fn skip_barrier(&self, kernel: &str, id: Option<u32>) {
        let name = CString::new(kernel).expect("a name without zeros");
        let id = id.map_or(-1, |id| i32::try_from(id).expect("barriers are numbered below 256"));
        assert!(id < 256, "barriers are numbered below 256, and this is {id}");
        assert_eq!((self.control.skip_barrier)(self.ordinal, name.as_ptr(), id), 1, "there is no kernel {kernel}");
    }

    /// What is known of a kernel's launches on this device.
    #[track_caller]
    pub fn launch_report(&self, kernel: &str) -> LaunchReport {
        let name = CString::new(kernel).expect("a name without zeros");
        let mut counts = LaunchCounts::default();
        let found = (self.control.launch_counts)(self.ordinal, name.as_ptr(), &mut counts);
        assert_eq!(found, 1, "there is no kernel {kernel}");
        let is_seen = |id: &u32| counts.barrier_ids[*id as usize / 64] >> (id % 64) & 1 != 0;
        LaunchReport {
            launches: counts.launches,
            barriers_most: counts.barriers_most,
            barriers_last: counts.barriers_last,
            barrier_ids: (0..256).filter(is_seen).collect(),
        }
    }

    /// Changes the version of the driver as far as modules go: 12080 is that of CUDA 12.8.
    pub fn set_driver_version(&self, version: i32) {
        (self.control.set_driver_version)(self.ordinal, version);
    }

    /// Says that the host reads or writes this range now; checked against what is queued.
    pub fn host_access(&self, address: *const u8, bytes: usize, is_write: bool) {
        (self.control.host_access)(self.ordinal, address as u64, bytes as u64, is_write.into());
    }

    /// Says that the calling thread was told, by means of the host, of all that other threads have waited for and done.
    pub fn hand_over(&self) {
        (self.control.hand_over)(self.ordinal);
    }

    /// Bytes of device or pinned memory as they lie there now, without any order.
    #[track_caller]
    pub fn peek(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut copy = vec![0; bytes];
        let code = (self.control.peek)(self.ordinal, address, bytes, copy.as_mut_ptr());
        assert_eq!(code, 0, "[{address:#x}, +{bytes}) is no memory of device {}", self.ordinal);
        copy
    }
}

impl Drop for EmulatedDevice {
    fn drop(&mut self) {
        (self.control.destroy)(self.ordinal);
    }
}
