//! The CUDA device, on the emulated driver.

#[path = "../../ftcache-testkit/src/cuda_world.rs"]
mod cuda_world;

use cuda_world::CudaWorld;
use ftcache_transfer::{Device, DeviceSpan, HostAccess, HostSpan, RowCopy};

#[test]
fn rows_go_to_the_device_and_come_back() {
    for seed in 0..20 {
        let world = CudaWorld::new(seed);
        let mut device = world.device();
        let report = device.probe_batches(0).unwrap().clone();
        eprintln!("{} {report}", device.facts());
        let rows: Vec<u8> = (0..10 * 300).map(|i| (i % 251) as u8).collect();
        let memory = device.allocate(4096, 512).unwrap();
        assert_eq!(device.address(memory).unwrap() % 512, 0);
        unsafe { device.register(rows.as_ptr(), rows.len() as u64, HostAccess::ReadWrite) }.unwrap();
        let stream = device.create_stream().unwrap();
        let copy = RowCopy {
            source: HostSpan { base: rows.as_ptr(), stride: 300 }.into(),
            target: DeviceSpan { memory, offset: 7, stride: 310 },
            row_bytes: 299,
            row_count: 10,
        };
        unsafe { device.copy_rows(stream, &copy) }.unwrap();
        device.synchronize(stream).unwrap();
        let mut bytes = vec![0; 4096];
        device.read(memory, 0, &mut bytes).unwrap();
        for row in 0..10 {
            assert_eq!(&bytes[7 + 310 * row..][..299], &rows[300 * row..][..299]);
        }
        drop(device);
        world.check_gone();
    }
}
