//! What tests steer the emulated driver with: a typed face of the control calls.
//!
//! A test links this and loads the library beside it, as the program under test does; all state is in the loaded copy. This
//! is test code: what cannot be is a panic with a sentence.
//!
//! *Unsafe*, relying on the library having been built from the same sources: the types of its symbols are those here.

use std::ffi::{CString, c_char, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use libloading::Library;

/// How the batch calls of a device work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Batch {
    /// As the manual says.
    #[default]
    Right,
    /// One byte of this copy arrives wrong.
    WrongBytes {
        /// The index of the copy.
        entry: usize,
    },
    /// The bytes before and behind this copy's target are spoiled, as far as they are of the same allocation.
    TouchesNeighbours {
        /// The index of the copy.
        entry: usize,
    },
    /// The call does nothing and gives this code.
    Fails {
        /// A `CUresult`.
        code: i32,
    },
    /// A batch with a copy of fewer bytes than this is done when the call returns, and so blocks.
    BlocksOnSmallEntries {
        /// The least size that does not block.
        below_bytes: u64,
    },
}

/// What a device is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Chooses every order, pattern and split.
    pub seed: u64,
    /// The device's memory.
    pub memory_bytes: u64,
    /// Operations are done as they are enqueued, where they can be; otherwise only when something waits.
    pub eager: bool,
    /// Registrations may hold this much in all.
    pub register_limit_bytes: Option<u64>,
    /// One registration may hold this much.
    pub register_call_max_bytes: Option<u64>,
    /// One refused registration makes every later one fail.
    pub register_poisoned_after_refusal: bool,
    /// What one host thread has waited for, all know. Otherwise a thread knows what it has waited for itself, what was
    /// known when it first called, and what [`EmulatedDevice::hand_over`] told it.
    pub threads_share_order: bool,
    /// How long a wait looks for a word that nobody raises. A device would wait for ever; here it is a violation and the
    /// context is lost, so that a test says why it hangs.
    pub word_patience_ms: u64,
    /// How batch calls work.
    pub batch: Batch,
    /// Values of device attributes, by number, in place of the usual ones.
    pub attributes: Vec<(i32, i32)>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 0,
            memory_bytes: 1 << 30,
            eager: false,
            register_limit_bytes: None,
            register_call_max_bytes: None,
            register_poisoned_after_refusal: false,
            threads_share_order: false,
            word_patience_ms: 10_000,
            batch: Batch::Right,
            attributes: Vec::new(),
        }
    }
}

/// What a device holds just now.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Live allocations of device memory.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// The most that was ever allocated at a time.
    pub peak_bytes: u64,
    /// Registered ranges of host memory.
    pub registrations: u64,
    /// Their bytes.
    pub registered_bytes: u64,
    /// Host memory allocated by the driver.
    pub host_allocations: u64,
    /// Streams made and not destroyed.
    pub streams: u64,
    /// Events made and not destroyed.
    pub events: u64,
    /// Graphs.
    pub graphs: u64,
    /// Graphs that can be launched.
    pub graph_execs: u64,
    /// Contexts made by `cuCtxCreate`.
    pub contexts: u64,
    /// Times the primary context is retained.
    pub primary_retains: u64,
    /// Copies ever enqueued with a side in memory that the driver does not know.
    pub pageable_copies: u64,
    /// Operations enqueued and not done.
    pub queued: u64,
}

/// [`Config`] as it crosses into the library.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawConfig {
    pub(crate) seed: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) register_limit_bytes: u64,
    pub(crate) register_call_max_bytes: u64,
    pub(crate) word_patience_ms: u64,
    pub(crate) eager: u32,
    pub(crate) register_poisoned_after_refusal: u32,
    pub(crate) threads_share_order: u32,
    pub(crate) batch: u32,
    pub(crate) batch_value: u64,
    pub(crate) attributes: *const [i32; 2],
    pub(crate) attribute_count: usize,
}

impl Batch {
    fn raw(self) -> (u32, u64) {
        match self {
            Batch::Right => (0, 0),
            Batch::WrongBytes { entry } => (1, entry as u64),
            Batch::TouchesNeighbours { entry } => (2, entry as u64),
            Batch::Fails { code } => (3, u64::from(code.cast_unsigned())),
            Batch::BlocksOnSmallEntries { below_bytes } => (4, below_bytes),
        }
    }

    pub(crate) fn from_raw(kind: u32, value: u64) -> Self {
        match kind {
            1 => Batch::WrongBytes { entry: value as usize },
            2 => Batch::TouchesNeighbours { entry: value as usize },
            3 => Batch::Fails { code: (value as u32).cast_signed() },
            4 => Batch::BlocksOnSmallEntries { below_bytes: value },
            _ => Batch::Right,
        }
    }
}

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

    /// Makes a device.
    pub fn device(&self, config: Config) -> EmulatedDevice {
        let attributes: Vec<[i32; 2]> = config.attributes.iter().map(|&(number, value)| [number, value]).collect();
        let (batch, batch_value) = config.batch.raw();
        let raw = RawConfig {
            seed: config.seed,
            memory_bytes: config.memory_bytes,
            register_limit_bytes: config.register_limit_bytes.unwrap_or(u64::MAX),
            register_call_max_bytes: config.register_call_max_bytes.unwrap_or(u64::MAX),
            word_patience_ms: config.word_patience_ms,
            eager: config.eager.into(),
            register_poisoned_after_refusal: config.register_poisoned_after_refusal.into(),
            threads_share_order: config.threads_share_order.into(),
            batch,
            batch_value,
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len(),
        };
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
        let (kind, value) = batch.raw();
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

    /// Lets a copy or fill fail when it runs, after this many more to be enqueued: it moves nothing, and from then on
    /// every call in its context gives the code.
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
