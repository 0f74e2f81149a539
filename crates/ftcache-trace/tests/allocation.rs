//! What a recorder takes, it takes at its start.

#[path = "../../ftcache-testkit/counting_allocator.rs"]
mod counting_allocator;

use counting_allocator::allocations;
use ftcache_trace::{Keep, Phase, Recorder, RecorderOptions};

#[test]
fn a_recorder_allocates_nothing_after_its_start() {
    for keep in [Keep::First, Keep::Last] {
        let options = RecorderOptions { keep, ..RecorderOptions::new("toy", 2, 8, 2) };
        let mut recorder = Recorder::new(options, 10 * 32).unwrap();
        // Three times its room, each token a segment after some without tokens, odd input and a step wider than the room.
        let allocated = allocations(|| {
            for token in 0..30 {
                (0..20).for_each(|request| recorder.begin(request, Phase::Prefill));
                recorder.begin(token, Phase::Decode);
                recorder.record(0, &[1, 2]);
                recorder.record(1, &[3, 9]);
                recorder.record(7, &[3]);
            }
            recorder.record(0, &[1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0]);
        });
        assert_eq!(allocated, 0, "{keep:?}");
        assert_eq!((recorder.tokens(), recorder.dropped(), recorder.refused()), (10, 32, 60), "{keep:?}");
    }
}
