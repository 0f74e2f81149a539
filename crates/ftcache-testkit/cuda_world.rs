//! A CUDA device for tests: one of the emulated driver's own, or the machine's GPU if `FTCACHE_TEST_GPU` is set. Test
//! files include this file by its path, as it is written against `ftcache-transfer`, which this crate does not see.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::sync::{Arc, OnceLock};

use ftcache_cuda_emu::client::{Config, EmulatedDevice, Emulator};
use ftcache_transfer::{CudaContext, CudaDevice, CudaDriver};

/// A device of a driver.
pub(crate) struct CudaWorld {
    pub(crate) driver: Arc<CudaDriver>,
    pub(crate) ordinal: i32,
    /// What steers the emulated one; `None` on a GPU.
    pub(crate) emulated: Option<EmulatedDevice>,
}

/// The emulated driver, started once.
pub(crate) fn emulated_driver() -> Arc<CudaDriver> {
    static DRIVER: OnceLock<Arc<CudaDriver>> = OnceLock::new();
    // Its control is opened first, so that it makes no devices by itself.
    let path = Emulator::library_path();
    // SAFETY: the emulator exports the driver's calls as the driver's manual declares them.
    let open = || unsafe { CudaDriver::open_at(&path) }.expect("the emulated driver starts");
    Arc::clone(DRIVER.get_or_init(open))
}

impl CudaWorld {
    /// On the emulated driver, whatever there is.
    pub(crate) fn emulated(config: Config) -> Self {
        let emulated = Emulator::open().device(config);
        Self { driver: emulated_driver(), ordinal: emulated.ordinal(), emulated: Some(emulated) }
    }

    /// On the machine's GPU if the tests are to run there.
    pub(crate) fn new(seed: u64) -> Self {
        if std::env::var_os("FTCACHE_TEST_GPU").is_none() {
            return Self::emulated(Config { seed, ..Config::default() });
        }
        static DRIVER: OnceLock<Arc<CudaDriver>> = OnceLock::new();
        let open = || CudaDriver::open().expect("FTCACHE_TEST_GPU is set, so there is a driver");
        Self { driver: Arc::clone(DRIVER.get_or_init(open)), ordinal: 0, emulated: None }
    }

    /// A device in its primary context.
    pub(crate) fn device(&self) -> CudaDevice {
        CudaDevice::new(Arc::clone(&self.driver), CudaContext::Primary(self.ordinal)).expect("a device that is there")
    }

    /// No race, nothing misused, nothing damaged, nothing left behind.
    #[track_caller]
    pub(crate) fn check_gone(&self) {
        let Some(emulated) = &self.emulated else { return };
        emulated.check();
        let counts = emulated.counts();
        let left = counts.allocations
            + counts.registrations
            + counts.host_allocations
            + counts.streams
            + counts.events
            + counts.graphs
            + counts.graph_execs
            + counts.modules
            + counts.primary_retains;
        assert_eq!(left, 0, "seed {}: {counts:?}", emulated.seed());
    }
}
