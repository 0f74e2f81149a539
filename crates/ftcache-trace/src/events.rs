//! A trace as a cache meets it: one event for each step of a layer, whose experts are all needed at once.
//!
//! An event is atomic. What it uses is there when it ends, and what is given up for it is never its own.

use std::ops::Range;

use crate::{Phase, Segment, Trace};

/// One step of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// The layer.
    pub layer: u32,
    /// The first token of the step.
    pub token: u64,
    /// That of the token's segment.
    pub phase: Phase,
    /// Each expert once, in the order in which the router first chose it, or last ([`Events::passes`]).
    pub experts: &'a [u16],
}

/// Which use gives an expert its place in an event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    First,
    Last,
}

/// The events of a trace, in the order in which an engine makes them: token by token, or batch by batch, each layer in
/// turn. Absent cells are none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Events {
    layers: u32,
    experts: u32,
    heads: Vec<Head>,
    /// `ids[heads[i].first..heads[i + 1].first]`.
    ids: Vec<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    first: usize,
    token: u64,
    layer: u32,
    phase: Phase,
}

impl Events {
    /// Every token is a step of each layer.
    pub fn of(trace: &Trace) -> Self {
        Self::batched(trace, 1)
    }

    /// Up to `batch` tokens of one segment, one after another, are a step of each layer.
    ///
    /// # Panics
    ///
    /// If `batch` is zero.
    pub fn batched(trace: &Trace, batch: usize) -> Self {
        assert!(batch > 0, "a step has a token");
        Self::build(trace, |_| batch, Order::First)
    }

    /// A prompt is one step of each layer, and every other token is one: the passes of an engine that decodes one
    /// request at a time. Experts stand in the order in which the router last chose them, so that whatever takes them
    /// in turn finds the experts of a prompt's end the most recent.
    pub fn passes(trace: &Trace) -> Self {
        let batch = |segment: &Segment| match segment.phase {
            Phase::Prefill => segment.tokens as usize,
            Phase::Decode | Phase::DecodeLike | Phase::Mixed => 1,
        };
        Self::build(trace, batch, Order::Last)
    }

    fn build(trace: &Trace, batch: impl Fn(&Segment) -> usize, order: Order) -> Self {
        let shape = trace.header().shape();
        let (layers, experts) = (shape.layers, shape.experts);
        let mut events = Self { layers, experts, heads: Vec::new(), ids: Vec::new() };
        let mut is_in = vec![false; experts as usize];
        let mut routes: Vec<u16> = Vec::new();
        for segment in &trace.header().segments {
            let (start, end) = (segment.start as usize, (segment.start + segment.tokens) as usize);
            let batch = batch(segment);
            for token in (start..end).step_by(batch) {
                for layer in 0..layers {
                    let first = events.ids.len();
                    let cells = (token..end.min(token + batch)).filter_map(|token| trace.cell(token, layer as usize));
                    routes.clear();
                    routes.extend(cells.flatten());
                    if order == Order::Last {
                        routes.reverse();
                    }
                    let is_new = |&&id: &&u16| !std::mem::replace(&mut is_in[usize::from(id)], true);
                    events.ids.extend(routes.iter().filter(is_new));
                    if order == Order::Last {
                        events.ids[first..].reverse();
                    }
                    if events.ids.len() > first {
                        events.heads.push(Head { first, token: token as u64, layer, phase: segment.phase });
                        events.ids[first..].iter().for_each(|&id| is_in[usize::from(id)] = false);
                    }
                }
            }
        }
        events
    }

    /// The events of these layers alone, which keep their numbers: what a pool of theirs meets.
    pub fn of_layers(&self, layers: &[u32]) -> Self {
        let mut is_asked = vec![false; self.layers as usize];
        layers.iter().for_each(|&layer| is_asked[layer as usize] = true);
        self.only(|event| is_asked[event.layer as usize])
    }

    /// The events whose first token is one of these.
    pub fn within(&self, tokens: Range<u64>) -> Self {
        self.only(|event| tokens.contains(&event.token))
    }

    fn only(&self, passes: impl Fn(&Event<'_>) -> bool) -> Self {
        let mut some = Self { layers: self.layers, experts: self.experts, heads: Vec::new(), ids: Vec::new() };
        for event in self.iter().filter(passes) {
            let Event { layer, token, phase, experts } = event;
            some.heads.push(Head { first: some.ids.len(), token, layer, phase });
            some.ids.extend_from_slice(experts);
        }
        some
    }

    /// Layers of the trace.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Experts of a layer.
    pub fn experts(&self) -> u32 {
        self.experts
    }

    /// How many events there are.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether the trace has no data.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Uses of experts over all events: each expert of an event is one, however many tokens of a batch routed to it.
    pub fn use_count(&self) -> u64 {
        self.ids.len() as u64
    }

    /// Each event in turn.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Event<'_>> + '_ {
        self.heads.iter().enumerate().map(|(index, head)| {
            let end = self.heads.get(index + 1).map_or(self.ids.len(), |next| next.first);
            let Head { first, token, layer, phase } = *head;
            Event { layer, token, phase, experts: &self.ids[first..end] }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ABSENT, Synthetic};

    fn trace(ids: Vec<u16>) -> Trace {
        // Two requests: of three tokens and of one. Two layers, top-2 of 8.
        let synthetic = Synthetic { tokens: 4, layers: 2, experts: 8, top_k: 2, requests: 1, ..Synthetic::default() };
        let mut header = synthetic.trace().unwrap().header().clone();
        let mut second = header.segments[0].clone();
        (header.segments[0].tokens, second.start, second.tokens) = (3, 3, 1);
        header.segments.push(second);
        header.absent_cells = ids.chunks(2).filter(|cell| cell[0] == ABSENT).count() as u64;
        Trace::new(header, ids).unwrap()
    }

    #[test]
    fn a_token_is_a_step_of_each_layer_that_ran() {
        let ids = vec![5, 2, 0, 1, 2, 5, ABSENT, ABSENT, 7, 6, 1, 0, 3, 4, 2, 1];
        let events = Events::of(&trace(ids));
        let seen: Vec<(u32, u64, Vec<u16>)> =
            events.iter().map(|event| (event.layer, event.token, event.experts.to_vec())).collect();
        let wanted = [
            (0, 0, vec![5, 2]),
            (1, 0, vec![0, 1]),
            (0, 1, vec![2, 5]),
            (0, 2, vec![7, 6]),
            (1, 2, vec![1, 0]),
            (0, 3, vec![3, 4]),
            (1, 3, vec![2, 1]),
        ];
        assert_eq!(seen, wanted);
        assert_eq!((events.len(), events.use_count()), (7, 14));
    }

    #[test]
    fn a_batch_uses_each_expert_once_and_ends_with_its_segment() {
        let ids = vec![5, 2, 0, 1, 2, 6, ABSENT, ABSENT, 7, 6, 1, 0, 3, 4, 2, 1];
        let events = Events::batched(&trace(ids), 2);
        let seen: Vec<(u32, u64, Vec<u16>)> =
            events.iter().map(|event| (event.layer, event.token, event.experts.to_vec())).collect();
        let wanted = [
            (0, 0, vec![5, 2, 6]),
            (1, 0, vec![0, 1]),
            (0, 2, vec![7, 6]),
            (1, 2, vec![1, 0]),
            (0, 3, vec![3, 4]),
            (1, 3, vec![2, 1]),
        ];
        assert_eq!(seen, wanted);
    }

    #[test]
    fn events_of_some_layers_or_tokens_are_the_others_left_out() {
        let ids = vec![5, 2, 0, 1, 2, 5, ABSENT, ABSENT, 7, 6, 1, 0, 3, 4, 2, 1];
        let events = Events::of(&trace(ids));
        let seen = |events: &Events| -> Vec<(u32, u64, Vec<u16>)> {
            events.iter().map(|event| (event.layer, event.token, event.experts.to_vec())).collect()
        };
        let second = events.of_layers(&[1]);
        assert_eq!(seen(&second), [(1, 0, vec![0, 1]), (1, 2, vec![1, 0]), (1, 3, vec![2, 1])]);
        assert_eq!((second.layers(), second.experts(), second.use_count()), (2, 8, 6));
        assert_eq!(seen(&events.within(1..3)), [(0, 1, vec![2, 5]), (0, 2, vec![7, 6]), (1, 2, vec![1, 0])]);
        assert_eq!((events.of_layers(&[1, 0]), events.within(0..4)), (events.clone(), events.clone()));
        assert!(events.of_layers(&[]).is_empty() && events.within(4..9).is_empty());
    }

    #[test]
    fn a_prompt_is_one_pass_whose_experts_stand_by_their_last_use() {
        let ids = vec![5, 2, ABSENT, ABSENT, 2, 6, ABSENT, ABSENT, 5, 7, 1, 0, 4, 3, 2, 1];
        let mut header = trace(ids.clone()).header().clone();
        (header.segments[0].phase, header.segments[1].phase) = (Phase::Prefill, Phase::Decode);
        let events = Events::passes(&Trace::new(header, ids).unwrap());
        let seen: Vec<(u32, u64, Phase, Vec<u16>)> =
            events.iter().map(|event| (event.layer, event.token, event.phase, event.experts.to_vec())).collect();
        let wanted = [
            (0, 0, Phase::Prefill, vec![2, 6, 5, 7]),
            (1, 0, Phase::Prefill, vec![1, 0]),
            (0, 3, Phase::Decode, vec![4, 3]),
            (1, 3, Phase::Decode, vec![2, 1]),
        ];
        assert_eq!(seen, wanted);
    }
}
