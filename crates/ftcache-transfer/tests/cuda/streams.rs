//! Streams and events: the caller's own handles, what is refused, and what is taken back.

use ftcache_policy::{Budget, Constraints, Geometry, LayoutKey, Model, Quantisation, Staging};
use ftcache_transfer::{Device, DeviceError, Loader, Stream, Streams};
use insta::assert_snapshot;

use crate::cuda_world::CudaWorld;
use crate::raw::{self, Engine, ok};
use crate::support::{
    PAGE, Pages, code, contents, copy_rows, current_device, emulated, event_of, line, register, seeded, span, stream_of,
};

const INVALID_HANDLE: i32 = 400;

#[test]
fn streams_and_events_of_the_engines_are_used_as_they_are() {
    for seed in 0..10 {
        let world = CudaWorld::new(seed);
        let engine = Engine::new(&world);
        let raw = engine.raw;
        let mut device = current_device(&world);
        let host = Pages::noise(seed, PAGE);
        register(&mut device, &host).unwrap();
        let memory = device.allocate(PAGE as u64, 1).unwrap();
        // That of each thread is another one on every thread, so that its handle says nothing of an order.
        let per_thread = device.check_stream(stream_of(2)).unwrap_err().to_string();
        assert_eq!(per_thread, "stream: the default stream of each thread is another one on every thread");
        // The default stream of the process has two handles.
        for stream in [engine.stream(true), engine.stream(false), 0, 1] {
            let (stream, compute) = (stream_of(stream), engine.stream(false));
            let (release, ready) = (engine.event(), device.create_event().unwrap());
            device.check_stream(stream).unwrap();
            // The engine writes, we copy behind it, and the engine goes on behind us.
            ok((raw.cuMemsetD8Async)(memory.0, 0x11, PAGE, compute));
            ok((raw.cuEventRecord)(release, compute));
            device.wait(stream, event_of(release)).unwrap();
            copy_rows(&mut device, stream, &line(&host[..100], memory, 0)).unwrap();
            device.record(ready, stream).unwrap();
            ok((raw.cuStreamWaitEvent)(compute, ready.raw(), 0));
            ok((raw.cuMemsetD8Async)(memory.0 + 50, 0x22, 10, compute));
            device.synchronize(stream_of(compute)).unwrap();
            assert_eq!(device.has_passed(ready), Ok(true));
            assert_eq!(device.has_passed(event_of(release)), Ok(true));
            let found = contents(&mut device, memory, PAGE);
            assert_eq!((&found[..50], &found[50..60]), (&host[..50], &[0x22; 10][..]), "seed {seed}");
            assert_eq!((&found[60..100], &found[100..]), (&host[60..100], &[0x11; PAGE - 100][..]));
            device.destroy_event(ready);
            // What the engine made is the engine's to destroy.
            device.destroy_event(event_of(release));
            device.destroy_stream(stream_of(compute));
            device.destroy_stream(stream);
            ok((raw.cuEventRecord)(release, compute));
            ok((raw.cuEventDestroy_v2)(release));
            ok((raw.cuStreamDestroy_v2)(compute));
            if stream.raw() > 2 {
                ok((raw.cuStreamDestroy_v2)(stream.raw()));
            }
        }
        drop(device);
        drop(engine);
        world.check_gone();
    }
}

#[test]
fn streams_that_are_captured_are_refused_by_name_and_the_capture_lives() {
    // Reported fault B45. GLOBAL, THREAD_LOCAL, RELAXED.
    for mode in 0..3 {
        for is_blocking in [true, false] {
            let world = CudaWorld::emulated(seeded(mode as u64));
            let engine = Engine::new(&world);
            let raw = engine.raw;
            let mut device = current_device(&world);
            let ours = device.create_stream().unwrap();
            let memory = device.allocate(64, 1).unwrap();
            let (stream, side, event) = (engine.stream(is_blocking), engine.stream(false), engine.event());
            device.check_stream(stream_of(stream)).unwrap();
            ok((raw.cuStreamBeginCapture_v2)(stream, mode));
            let refused = device.check_stream(stream_of(stream)).unwrap_err();
            assert_eq!(refused, DeviceError::Capturing { stream });
            assert_eq!(refused.to_string(), format!("stream {stream:#x} is being captured"));
            // A stream that has joined the capture is captured, too.
            device.check_stream(stream_of(side)).unwrap();
            ok((raw.cuEventRecord)(event, stream));
            ok((raw.cuStreamWaitEvent)(side, event, 0));
            assert_eq!(device.check_stream(stream_of(side)), Err(DeviceError::Capturing { stream: side }));
            // Others are not, but for the default stream, which would wait for a blocking one.
            device.check_stream(ours).unwrap();
            let default = device.check_stream(Stream::DEFAULT);
            assert_eq!(default.is_err(), is_blocking, "{default:?}");
            ok((raw.cuMemsetD8Async)(memory.0, 1, 64, side));
            ok((raw.cuEventRecord)(event, side));
            ok((raw.cuStreamWaitEvent)(stream, event, 0));
            let mut graph = 0;
            ok((raw.cuStreamEndCapture)(stream, &mut graph));
            device.check_stream(stream_of(stream)).unwrap();
            device.check_stream(stream_of(side)).unwrap();
            ok((raw.cuGraphDestroy)(graph));
            emulated(&world).check();
        }
    }
    assert_snapshot!(DeviceError::Capturing { stream: 48 }, @"stream 0x30 is being captured");
}

#[test]
fn no_call_joins_a_capture_by_way_of_another_stream() {
    let world = CudaWorld::emulated(seeded(5));
    let engine = Engine::new(&world);
    let raw = engine.raw;
    let layers = vec![LayoutKey::tagged("t", [64]); 1];
    let model = Model::new(4, 1, Quantisation::PerLayer, layers).unwrap();
    let geometry = Geometry::new(model, Constraints::new(Budget::Slots(4))).unwrap();
    let mut loader = Loader::new(geometry.clone(), current_device(&world)).unwrap();
    loader.set_staging(Staging::dedicated(&geometry, 2)).unwrap();
    let (one, other) = (engine.stream(false), engine.stream(false));
    let captured = DeviceError::Capturing { stream: one };
    loader.take_over(stream_of(one)).unwrap();
    // The engine captures the stream of the last step, and goes on with a step on another.
    let mut graph = 0;
    ok((raw.cuStreamBeginCapture_v2)(one, 0));
    assert_eq!(loader.take_over(stream_of(other)), Err(captured.clone()));
    loader.device().check_stream(stream_of(other)).expect("it has not joined");
    ok((raw.cuStreamEndCapture)(one, &mut graph));
    ok((raw.cuGraphDestroy)(graph));
    loader.take_over(stream_of(other)).unwrap();
    // A chunk's streams may be captured after it has begun.
    loader.begin_chunk(Streams { compute: stream_of(one), copy: stream_of(other) }).unwrap();
    ok((raw.cuStreamBeginCapture_v2)(one, 0));
    assert_eq!(loader.check_chunk(), Err(captured));
    ok((raw.cuStreamEndCapture)(one, &mut graph));
    ok((raw.cuGraphDestroy)(graph));
    loader.check_chunk().unwrap();
    loader.end_chunk().unwrap();
    emulated(&world).check();
}

#[test]
fn a_capture_of_somebody_elses_outlives_every_call() {
    let world = CudaWorld::emulated(seeded(6));
    let engine = Engine::new(&world);
    let raw = engine.raw;
    let mut device = current_device(&world);
    let (captured, event) = (engine.stream(false), device.create_event().unwrap());
    let host = Pages::noise(1, PAGE);
    register(&mut device, &host).unwrap();
    // GLOBAL: calls that are not safe in a capture end it, whoever makes them.
    ok((raw.cuStreamBeginCapture_v2)(captured, 0));
    let ours = device.create_stream().unwrap();
    let memory = device.allocate(PAGE as u64, 1).unwrap();
    copy_rows(&mut device, ours, &line(&host, memory, 0)).unwrap();
    device.record(event, ours).unwrap();
    device.has_passed(event).unwrap();
    device.check().unwrap();
    assert_eq!(device.can_read(host.as_ptr(), PAGE as u64), Ok(true));
    device.synchronize(ours).unwrap();
    assert_eq!(contents(&mut device, memory, PAGE), host[..]);
    let mut graph = 0;
    ok((raw.cuStreamEndCapture)(captured, &mut graph));
    ok((raw.cuGraphDestroy)(graph));
    emulated(&world).check();
}

#[test]
fn streams_and_events_that_are_gone_are_refused() {
    let world = CudaWorld::emulated(seeded(1));
    let mut device = world.device();
    let (stream, event) = (device.create_stream().unwrap(), device.create_event().unwrap());
    let (gone, past) = (device.create_stream().unwrap(), device.create_event().unwrap());
    device.destroy_stream(gone);
    device.destroy_event(past);
    let host = Pages::new(PAGE);
    register(&mut device, &host).unwrap();
    let memory = device.allocate(64, 1).unwrap();
    let copy = line(&host[..8], memory, 0);
    let refused = [
        device.check_stream(gone),
        device.record(event, gone),
        device.record(past, stream),
        device.wait(gone, event),
        device.wait(stream, past),
        device.has_passed(past).map(|_| ()),
        device.synchronize(gone),
        device.clear_rows(gone, &span(memory, 0, 8), 8, 1),
        copy_rows(&mut device, gone, &copy),
    ];
    for refused in refused {
        assert_eq!(code(&refused.unwrap_err()), INVALID_HANDLE);
    }
    // Once is enough, and the driver is not asked twice.
    let calls = || ["cuStreamDestroy_v2", "cuEventDestroy_v2"].map(|name| emulated(&world).calls(name));
    let before = calls();
    device.destroy_stream(gone);
    device.destroy_event(past);
    assert_eq!(calls(), before);
    device.synchronize_all().unwrap();
    emulated(&world).violations();
    drop(device);
    world.check_gone();
}

#[test]
fn streams_of_another_device_or_context_are_refused() {
    let (world, other) = (CudaWorld::emulated(seeded(2)), CudaWorld::emulated(seeded(3)));
    let (mut device, mut foreign) = (world.device(), other.device());
    let (stream, event) = (foreign.create_stream().unwrap(), foreign.create_event().unwrap());
    let ours = device.create_stream().unwrap();
    let memory = device.allocate(64, 1).unwrap();
    for refused in [
        device.check_stream(stream),
        device.record(event, ours),
        device.wait(stream, event),
        device.synchronize(stream),
        device.clear_rows(stream, &span(memory, 0, 8), 8, 1),
    ] {
        assert_eq!(code(&refused.unwrap_err()), INVALID_HANDLE);
    }
    emulated(&world).violations();
    // Another context of the same device.
    let raw = raw::of(&world);
    let mut context = 0;
    ok((raw.cuCtxCreate_v2)(&mut context, 0, world.ordinal));
    let mut beside = current_device(&world);
    let stream = beside.create_stream().unwrap();
    let wanted = DeviceError::UnknownHandle { what: "stream", handle: stream.raw() };
    assert_eq!(device.check_stream(stream), Err(wanted));
    beside.check_stream(stream).unwrap();
    beside.check_stream(Stream::DEFAULT).unwrap();
    drop(beside);
    ok((raw.cuCtxDestroy_v2)(context));
    drop((device, foreign));
    world.check_gone();
    other.check_gone();
}

#[test]
fn what_a_destroyed_stream_was_given_is_still_done_and_waits_for_destroyed_events_stay() {
    for seed in 0..20 {
        let world = CudaWorld::new(seed);
        let mut device = world.device();
        let host = Pages::noise(seed, 2 * PAGE);
        register(&mut device, &host).unwrap();
        let memory = device.allocate(PAGE as u64, 1).unwrap();
        let (stream, other) = (device.create_stream().unwrap(), device.create_stream().unwrap());
        let event = device.create_event().unwrap();
        copy_rows(&mut device, stream, &line(&host[..PAGE], memory, 0)).unwrap();
        device.record(event, stream).unwrap();
        device.wait(other, event).unwrap();
        device.destroy_event(event);
        device.destroy_stream(stream);
        copy_rows(&mut device, other, &line(&host[PAGE..][..100], memory, 50)).unwrap();
        device.synchronize(other).unwrap();
        let found = contents(&mut device, memory, PAGE);
        assert_eq!((&found[..50], &found[50..150]), (&host[..50], &host[PAGE..][..100]), "seed {seed}");
        assert_eq!(found[150..], host[150..PAGE]);
        drop(device);
        world.check_gone();
    }
}

#[test]
fn an_event_passes_when_its_point_is_reached_and_not_before() {
    let mut early = 0;
    for seed in 0..40 {
        let world = CudaWorld::new(seed);
        let mut device = world.device();
        let host = Pages::noise(seed, PAGE);
        register(&mut device, &host).unwrap();
        let memory = device.allocate(PAGE as u64, 1).unwrap();
        let stream = device.create_stream().unwrap();
        let event = device.create_event().unwrap();
        assert_eq!(device.has_passed(event), Ok(true), "an event that was never recorded");
        copy_rows(&mut device, stream, &line(&host, memory, 0)).unwrap();
        device.record(event, stream).unwrap();
        while device.has_passed(event) == Ok(false) {
            early += 1;
        }
        assert_eq!(device.has_passed(event), Ok(true));
        if let Some(emulated) = &world.emulated {
            assert_eq!(emulated.peek(memory.0, PAGE), host[..], "seed {seed}");
            // Whoever has seen it pass may change the rows.
            emulated.host_access(host.as_ptr(), PAGE, true);
        }
        drop(device);
        world.check_gone();
    }
    assert!(early > 0 || std::env::var_os("FTCACHE_TEST_GPU").is_some(), "nothing was ever on its way");
}
