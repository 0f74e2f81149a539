//! A device to launch single kernels on, with arguments of the tests' own.
//!
//! *Unsafe*, relying on one promise: what arguments point to is memory of the bench's, which is waited for before it
//! goes.

use bytemuck::{Pod, Zeroable};
use ftcache_transfer::{CudaDevice, Device, Kernel, Launch, Memory, Stream};

pub(crate) use crate::abi::*;
use crate::cuda_world::CudaWorld;
use crate::support::{PAGE, Pages, register};

/// The generation that a bench's header has.
pub(crate) const GENERATION: u64 = 7;
/// The step that it has.
pub(crate) const STEP: u64 = 41;

/// A device, a header whose fault lies in pinned memory, and a word beside it.
pub(crate) struct Bench {
    pub(crate) world: CudaWorld,
    pub(crate) device: CudaDevice,
    pub(crate) stream: Stream,
    /// Page 0 begins with the fault; page 1 is a word's.
    pub(crate) pages: Pages,
    header: Memory,
    pub(crate) header_address: u64,
    held: Vec<Memory>,
    registered: Vec<Pages>,
}

impl Bench {
    pub(crate) fn new(world: CudaWorld) -> Self {
        let mut device = world.device();
        device.prepare_kernels().unwrap();
        let stream = device.create_stream().unwrap();
        let pages = Pages::new(2 * PAGE);
        register(&mut device, &pages).unwrap();
        let fault = device.kernel_address(pages.as_ptr(), PAGE as u64).unwrap();
        let header = device.allocate(size_of::<Header>() as u64, 256).unwrap();
        let words = Header { generation: GENERATION, step: STEP, fault, reserved: 0 };
        device.write(header, 0, bytemuck::bytes_of(&words)).unwrap();
        let header_address = device.address(header).unwrap();
        Self { world, device, stream, pages, header, header_address, held: Vec::new(), registered: Vec::new() }
    }

    /// Device memory with these bytes.
    pub(crate) fn memory(&mut self, bytes: &[u8]) -> Memory {
        let memory = self.device.allocate(bytes.len().max(1) as u64, 256).unwrap();
        self.device.write(memory, 0, bytes).unwrap();
        self.held.push(memory);
        memory
    }

    /// The address of device memory with these items.
    pub(crate) fn items<T: Pod>(&mut self, items: &[T]) -> u64 {
        let memory = self.memory(bytemuck::cast_slice(items));
        self.device.address(memory).unwrap()
    }

    /// Pinned memory with these bytes, by its address for kernels.
    pub(crate) fn pinned(&mut self, bytes: &[u8]) -> u64 {
        let mut pages = Pages::new(bytes.len());
        pages.copy_from_slice(bytes);
        register(&mut self.device, &pages).unwrap();
        let address = self.device.kernel_address(pages.as_ptr(), bytes.len() as u64).unwrap();
        self.registered.push(pages);
        address
    }

    /// Gives memory back, so that a bench serves many cases.
    pub(crate) fn clear(&mut self) {
        self.held.drain(..).for_each(|memory| self.device.free(memory));
        for pages in self.registered.drain(..) {
            self.device.unregister(pages.as_ptr()).unwrap();
        }
    }

    pub(crate) fn read(&mut self, memory: Memory, bytes: usize) -> Vec<u8> {
        let mut target = vec![0; bytes];
        self.device.read(memory, 0, &mut target).unwrap();
        target
    }

    /// The first items of memory.
    pub(crate) fn read_items<T: Pod>(&mut self, memory: Memory, count: usize) -> Vec<T> {
        let bytes = self.read(memory, count * size_of::<T>());
        bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
    }

    /// Enqueues a kernel of so many blocks and threads.
    pub(crate) fn launch<T: Pod>(&mut self, kernel: Kernel, (blocks, threads): (u32, u32), arguments: &T) {
        let arguments = bytemuck::bytes_of(arguments);
        let launch = Launch { kernel, block_count: blocks, thread_count: threads, shared_bytes: 0, arguments };
        // SAFETY: see above.
        unsafe { self.device.launch(self.stream, &launch) }.unwrap();
    }

    /// The fault, once all is done.
    pub(crate) fn fault(&mut self) -> Fault {
        self.device.synchronize(self.stream).unwrap();
        *bytemuck::from_bytes(&self.pages[..size_of::<Fault>()])
    }

    /// Starts over with faults.
    pub(crate) fn forget_fault(&mut self) {
        self.device.synchronize(self.stream).unwrap();
        self.pages[..size_of::<Fault>()].fill(0);
    }

    #[track_caller]
    pub(crate) fn no_fault(&mut self, at: &str) {
        assert_eq!(self.fault(), Fault::zeroed(), "{at}");
    }

    #[track_caller]
    pub(crate) fn end(mut self) {
        self.clear();
        self.device.free(self.header);
        self.device.unregister(self.pages.as_ptr()).unwrap();
        self.device.destroy_stream(self.stream);
        let Self { world, device, pages, .. } = self;
        drop(device);
        drop(pages);
        world.check_gone();
    }
}
