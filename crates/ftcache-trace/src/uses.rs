//! Events with a small number for each expert they use: what the curves count with. A number is a **name**, dense from
//! 0 over all layers or over one, so that tables by name are as long as there are experts used, whatever the header
//! says.

use crate::Events;

/// The uses of a run of steps, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Uses {
    /// Step `i` uses `names[starts[i]..starts[i + 1]]`, each once.
    starts: Vec<usize>,
    names: Vec<u32>,
    /// `flat_of[name] == layer * experts + expert`.
    flat_of: Vec<u64>,
    widest: usize,
}

impl Uses {
    fn new() -> Self {
        Self { starts: vec![0], names: Vec::new(), flat_of: Vec::new(), widest: 0 }
    }

    /// All steps, as they come.
    pub(crate) fn unified(events: &Events) -> Self {
        let layers = Self::by_layer(events);
        let mut all = Self { names: Vec::with_capacity(events.use_count() as usize), ..Self::new() };
        let mut due = Vec::with_capacity(layers.len());
        for layer in &layers {
            // A name is one of 2^32: more experts than that are more ids than memory holds.
            due.push((all.flat_of.len() as u32, layer.steps()));
            all.flat_of.extend_from_slice(&layer.flat_of);
        }
        for event in events.iter() {
            let (first, steps) = &mut due[event.layer as usize];
            let step = steps.next().expect("a layer has a step for each of its events");
            all.push(step.iter().map(|name| *first + name));
        }
        all
    }

    /// The steps of each layer apart.
    pub(crate) fn by_layer(events: &Events) -> Vec<Self> {
        let mut layers: Vec<Self> = (0..events.layers()).map(|_| Self::new()).collect();
        for event in events.iter() {
            layers[event.layer as usize].push(event.experts.iter().map(|&id| id.into()));
        }
        // Layer after layer, so that one table does for all: the layer that named an id last, and the name.
        let mut named = vec![(u32::MAX, 0); events.experts() as usize];
        for (layer, uses) in (0..).zip(&mut layers) {
            for name in &mut uses.names {
                let id = *name;
                let (by, known) = &mut named[id as usize];
                if *by != layer {
                    (*by, *known) = (layer, uses.flat_of.len() as u32);
                    uses.flat_of.push(u64::from(layer) * u64::from(events.experts()) + u64::from(id));
                }
                *name = *known;
            }
        }
        layers
    }

    /// The uses of the experts whose flat id passes, under new names. A step stays one, also where nothing is left.
    pub(crate) fn only(&self, passes: impl Fn(u64) -> bool) -> Self {
        let mut some = Self::new();
        let renamed: Vec<Option<u32>> = self
            .flat_of
            .iter()
            .map(|&flat| {
                passes(flat).then(|| {
                    some.flat_of.push(flat);
                    some.flat_of.len() as u32 - 1
                })
            })
            .collect();
        for step in self.steps() {
            some.push(step.iter().filter_map(|&name| renamed[name as usize]));
        }
        some
    }

    fn push(&mut self, step: impl Iterator<Item = u32>) {
        let start = self.names.len();
        self.names.extend(step);
        self.starts.push(self.names.len());
        self.widest = self.widest.max(self.names.len() - start);
    }

    /// The names of each step, in the router's order.
    pub(crate) fn steps(&self) -> impl DoubleEndedIterator<Item = &[u32]> + ExactSizeIterator {
        self.starts.windows(2).map(|bounds| &self.names[bounds[0]..bounds[1]])
    }

    /// Uses of all steps.
    pub(crate) fn count(&self) -> usize {
        self.names.len()
    }

    /// Experts used at all; names lie below.
    pub(crate) fn used(&self) -> usize {
        self.flat_of.len()
    }

    /// Experts of the widest step.
    pub(crate) fn widest(&self) -> usize {
        self.widest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Synthetic;

    #[test]
    fn names_are_dense_and_stand_for_one_expert_of_one_layer() {
        let events = Events::batched(&Synthetic::default().trace().unwrap(), 3);
        let uses = Uses::unified(&events);
        // One of 4 layers of 16 is never chosen.
        assert_eq!((uses.count() as u64, uses.used()), (events.use_count(), 63));
        assert_eq!(uses.widest(), events.iter().map(|event| event.experts.len()).max().unwrap());
        let flat = |step: &[u32]| step.iter().map(|&name| uses.flat_of[name as usize]).collect::<Vec<_>>();
        for (event, step) in events.iter().zip(uses.steps()) {
            let wanted: Vec<u64> =
                event.experts.iter().map(|&id| u64::from(event.layer) * 16 + u64::from(id)).collect();
            assert_eq!(flat(step), wanted);
        }
    }

    #[test]
    fn a_selection_keeps_the_steps() {
        let uses = Uses::unified(&Events::of(&Synthetic::default().trace().unwrap()));
        let odd = uses.only(|flat| flat % 2 == 1);
        assert_eq!(odd.used(), uses.flat_of.iter().filter(|&flat| flat % 2 == 1).count());
        assert_eq!(odd.steps().len(), uses.steps().len());
        for (all, some) in uses.steps().zip(odd.steps()) {
            let wanted: Vec<u64> =
                all.iter().map(|&name| uses.flat_of[name as usize]).filter(|id| id % 2 == 1).collect();
            assert_eq!(some.iter().map(|&name| odd.flat_of[name as usize]).collect::<Vec<_>>(), wanted);
        }
    }
}
