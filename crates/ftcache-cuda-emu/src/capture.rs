//! Capture: calls on a stream become the nodes of a graph; and launching what was captured.
//!
//! After the chapters on graphs and stream capture of the CUDA programming guide. Stricter than a driver in that work
//! with pageable memory, batches and launches of graphs are refused in a capture.

use std::sync::Arc;

use crate::clock::Clock;
use crate::codes::{
    Answer, CAPTURE_INVALIDATED, CAPTURE_ISOLATION, CAPTURE_MERGE, CAPTURE_UNJOINED, CAPTURE_UNMATCHED,
    CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, CAPTURED_EVENT, ILLEGAL_STATE, INVALID_VALUE,
};
use crate::host_memory::HostKind;
use crate::operation::{Task, Touch, Work};
use crate::session::Session;
use crate::state::{Kind, Record, State};
use crate::worlds::{HandleKind, THREAD};

/// What a stream is in while it is captured.
#[derive(Clone, Debug)]
pub(crate) struct Capturing {
    pub(crate) capture: u64,
    /// What its next node comes after.
    pub(crate) nodes: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct Capture {
    origin: usize,
    pub(crate) thread: u64,
    pub(crate) mode: i32,
    pub(crate) invalid: bool,
    nodes: Vec<Node>,
}

/// One operation of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    call: &'static str,
    work: Work,
    touches: Vec<Touch>,
    /// Earlier nodes.
    after: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) context: u64,
    nodes: Arc<Vec<Node>>,
}

/// A graph that can be launched. Its nodes are dealt into chains, each of them a timeline of its own; the first chain
/// goes into the stream it is launched in.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) context: u64,
    nodes: Arc<Vec<Node>>,
    chain_of: Vec<usize>,
    chains: Vec<usize>,
    /// The end of its last launch.
    last: Option<(usize, u64, Arc<Clock>)>,
}

impl Session<'_> {
    pub(crate) fn begin_capture(&mut self, timeline: usize, mode: i32) -> Answer {
        let line = &self.timelines[timeline];
        if line.kind == Kind::Legacy {
            return Err(self.refuse(CAPTURE_UNSUPPORTED, "the legacy stream cannot be captured"));
        }
        if line.capture.is_some() {
            return Err(self.refuse(ILLEGAL_STATE, "the stream is being captured already"));
        }
        let capture = self.new_handle(HandleKind::Capture);
        let thread = THREAD.with(|thread| thread.id);
        self.captures.insert(capture, Capture { origin: timeline, thread, mode, invalid: false, nodes: Vec::new() });
        self.timelines[timeline].capture = Some(Capturing { capture, nodes: Vec::new() });
        Ok(())
    }

    /// Ends the capture that began in this stream, and gives the graph's handle.
    pub(crate) fn end_capture(&mut self, timeline: usize) -> Answer<u64> {
        let Some(Capturing { capture: id, nodes: joined }) = self.timelines[timeline].capture.clone() else {
            return Err(self.refuse(ILLEGAL_STATE, "the stream is not being captured"));
        };
        let capture = &self.captures[&id];
        if capture.origin != timeline {
            self.invalidate(id);
            return Err(self.refuse(CAPTURE_UNMATCHED, "the capture began in another stream"));
        }
        if capture.thread != THREAD.with(|thread| thread.id) && capture.mode != 2 {
            return Err(self.refuse(CAPTURE_WRONG_THREAD, "the capture was begun by another thread"));
        }
        for line in &mut self.timelines {
            line.capture.take_if(|capturing| capturing.capture == id);
        }
        let Some(capture) = self.captures.remove(&id) else { return Err(ILLEGAL_STATE) };
        if capture.invalid {
            return Err(CAPTURE_INVALIDATED);
        }
        // Whatever was forked off must have been joined: every node comes before what the stream stands after.
        let mut reached = vec![false; capture.nodes.len()];
        let mut open = joined;
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut reached[node], true) {
                open.extend(&capture.nodes[node].after);
            }
        }
        if let Some(stray) = reached.iter().position(|reached| !reached) {
            let what = format!("node {stray}, {}, was not joined", capture.nodes[stray].call);
            return Err(self.refuse(CAPTURE_UNJOINED, &what));
        }
        let graph = self.new_handle(HandleKind::Graph);
        let context = self.context;
        self.graphs.insert(graph, Graph { context, nodes: Arc::new(capture.nodes) });
        Ok(graph)
    }

    /// Adds a task to the graph that is captured from a stream.
    pub(crate) fn capture_task(&mut self, timeline: usize, task: Task) -> Answer {
        let id = self.captured_in(timeline)?;
        let one_time = match &task.work {
            Work::Kernel(kernel) => kernel.once,
            _ => false,
        };
        if one_time || !task.staged.is_empty() || !task.tampered.is_empty() {
            self.invalidate(id);
            return Err(self.refuse(CAPTURE_UNSUPPORTED, "this can be done one time only, and not from a graph"));
        }
        let after = self.timelines[timeline].capture.take().map(|capturing| capturing.nodes).unwrap_or_default();
        let capture = self.captures.get_mut(&id).expect("looked up above");
        capture.nodes.push(Node { call: task.call, work: task.work, touches: task.touches, after });
        let node = capture.nodes.len() - 1;
        self.timelines[timeline].capture = Some(Capturing { capture: id, nodes: vec![node] });
        Ok(())
    }

    /// The capture that a stream is in, if it is still good.
    fn captured_in(&mut self, timeline: usize) -> Answer<u64> {
        let id = self.timelines[timeline].capture.as_ref().map(|capturing| capturing.capture).ok_or(ILLEGAL_STATE)?;
        if self.captures.get(&id).is_none_or(|capture| capture.invalid) {
            return Err(CAPTURE_INVALIDATED);
        }
        Ok(id)
    }

    /// Refuses what no capture can hold, and spoils the capture of the stream.
    pub(crate) fn not_captured(&mut self, timeline: usize, what: &str) -> Answer {
        let Some(capturing) = &self.timelines[timeline].capture else { return Ok(()) };
        let id = capturing.capture;
        self.invalidate(id);
        Err(self.refuse(CAPTURE_UNSUPPORTED, &format!("{what} in a capture")))
    }

    /// A wait, where the stream or the event is in a capture; false if neither is.
    pub(crate) fn capture_wait(&mut self, timeline: usize, record: &Record) -> Answer<bool> {
        let mine = self.timelines[timeline].capture.as_ref().map(|capturing| capturing.capture);
        match (record, mine) {
            (Record::Never | Record::Queued { .. }, None) => Ok(false),
            (Record::Never | Record::Queued { .. }, Some(id)) => {
                self.invalidate(id);
                Err(self.refuse(CAPTURE_ISOLATION, "the event was not recorded in the stream's capture"))
            }
            (Record::Captured { capture, .. }, _) if !self.captures.contains_key(capture) => {
                Err(self.refuse(CAPTURED_EVENT, "the event was recorded in a capture that has ended"))
            }
            (Record::Captured { capture, .. }, Some(id)) if id != *capture => {
                self.invalidate(id);
                self.invalidate(*capture);
                Err(self.refuse(CAPTURE_MERGE, "the stream and the event are in different captures"))
            }
            (Record::Captured { capture, nodes }, _) => {
                if self.timelines[timeline].kind == Kind::Legacy {
                    self.invalidate(*capture);
                    return Err(self.refuse(CAPTURE_UNSUPPORTED, "the legacy stream cannot join a capture"));
                }
                let none = || Capturing { capture: *capture, nodes: Vec::new() };
                let capturing = self.timelines[timeline].capture.get_or_insert_with(none);
                let new: Vec<usize> = nodes.iter().copied().filter(|node| !capturing.nodes.contains(node)).collect();
                capturing.nodes.extend(new);
                self.captured_in(timeline)?;
                Ok(true)
            }
        }
    }

    pub(crate) fn instantiate(&mut self, graph: u64) -> Answer<u64> {
        let context = self.context;
        let Some(of) = self.graphs.get(&graph) else {
            return Err(self.refuse(INVALID_VALUE, &format!("{graph:#x} is no graph")));
        };
        let nodes = of.nodes.clone();
        // A node goes on a chain whose last node it comes after, or begins one.
        let (mut ends, mut chain_of) = (Vec::<usize>::new(), Vec::new());
        for (at, node) in nodes.iter().enumerate() {
            let chain = ends.iter().position(|end| node.after.contains(end)).unwrap_or_else(|| {
                ends.push(at);
                ends.len() - 1
            });
            ends[chain] = at;
            chain_of.push(chain);
        }
        let exec = self.new_handle(HandleKind::Exec);
        let chains = (1..ends.len())
            .map(|chain| self.new_timeline(context, Kind::Branch, format!("branch {chain} of graph {:#x}", exec)))
            .collect();
        self.execs.insert(exec, Exec { context, nodes, chain_of, chains, last: None });
        Ok(exec)
    }

    /// Enqueues every node of a graph: after what is in the stream and after its own last launch, by the manual.
    pub(crate) fn launch_graph(&mut self, exec: u64, timeline: usize) -> Answer {
        let Some(of) = self.execs.get(&exec) else {
            return Err(self.refuse(INVALID_VALUE, &format!("{exec:#x} is no graph that can be launched")));
        };
        let (nodes, chain_of, chains) = (of.nodes.clone(), of.chain_of.clone(), of.chains.clone());
        let last = of.last.clone();
        let context = self.context;
        let mut tasks = Vec::new();
        for node in nodes.iter() {
            if let Work::Launch(launch) = &node.work {
                // Asked anew: it goes by what is in memory now.
                self.check_module(launch)?;
                tasks.push(self.launch_task(launch, context)?);
                continue;
            }
            for touch in &node.touches {
                self.check_still_there(node.call, touch)?;
            }
            tasks.push(Task::new(node.call, node.work.clone(), node.touches.clone()));
        }
        let thread = self.thread;
        let (after, joined) = match &last {
            Some((line, number, clock)) => (vec![(*line, *number)], Some(&**clock)),
            None => (Vec::new(), None),
        };
        let begin = Task::new("cuGraphLaunch", Work::Nothing, Vec::new());
        let start = self.enqueue(thread, timeline, begin, after, joined);
        let start_clock = self.timelines[timeline].clock.clone();
        let mut places: Vec<(usize, u64, Arc<Clock>)> = Vec::new();
        for ((node, &chain), task) in nodes.iter().zip(&chain_of).zip(tasks) {
            let line = if chain == 0 { timeline } else { chains[chain - 1] };
            let mut after = vec![(timeline, start)];
            let mut joined = Clock::clone(&start_clock);
            for &earlier in &node.after {
                let (its_line, number, clock) = &places[earlier];
                after.push((*its_line, *number));
                joined.join(clock);
            }
            let number = self.enqueue(thread, line, task, after, Some(&joined));
            places.push((line, number, self.timelines[line].clock.clone()));
        }
        let mut joined = Clock::clone(&start_clock);
        places.iter().for_each(|(_, _, clock)| joined.join(clock));
        let after = places.iter().map(|(line, number, _)| (*line, *number)).collect();
        let end = Task::new("cuGraphLaunch", Work::Nothing, Vec::new());
        let number = self.enqueue(thread, timeline, end, after, Some(&joined));
        let clock = self.timelines[timeline].clock.clone();
        if let Some(of) = self.execs.get_mut(&exec) {
            of.last = Some((timeline, number, clock));
        }
        self.settle_if_eager()
    }

    fn check_still_there(&mut self, call: &'static str, touch: &Touch) -> Answer {
        let (base, extent) = (touch.rows.base, touch.rows.extent());
        let live = self.memory.holding(base).is_some_and(|live| base + extent <= live.base + live.bytes);
        let pinned =
            matches!(self.host.classify(base, extent), HostKind::Pinned { read_only } if !(read_only && touch.write));
        if live || pinned {
            return Ok(());
        }
        let what = format!("a graph's {call} touches {}, which is gone since", touch.rows);
        Err(self.refuse(INVALID_VALUE, &what))
    }
}

impl State {
    pub(crate) fn invalidate(&mut self, capture: u64) {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.invalid = true;
        }
    }
}
