//! Which layers decode on the CPU: they hold no slots, and their rows need not be pinned.
//!
//! Where the caller gives only a number, layers are taken from both ends in turn, the first layer before the last. The
//! first layers hit least (46 % in layer 1 and 89 % in layer 15 of one model at one size), so they lose least.

use std::fmt;

use crate::{CpuLayersError, LayerId, Model, Share};

/// Which layers decode on the CPU.
///
/// ```
/// use ftcache_policy::{CpuLayers, LayoutKey, Model, Quantisation};
///
/// // Ten layers of 8 MiB, of which 60 MiB can be pinned: three are left to the CPU.
/// let layers = vec![LayoutKey::tagged("Q4_K", [1 << 20]); 10];
/// let model = Model::new(8, 2, Quantisation::PerLayer, layers)?;
/// let taken = CpuLayers::parse("auto")?.resolve(&model, &[], |_| true, Some(60 << 20))?;
/// assert_eq!(taken.iter().map(|layer| layer.get()).collect::<Vec<_>>(), [0, 1, 9]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CpuLayers {
    /// None.
    #[default]
    None,
    /// These.
    List(Vec<LayerId>),
    /// So many, from both ends.
    Count(u32),
    /// A share of all layers, rounded down, from both ends.
    Share(Share),
    /// From both ends, while the rows of the others have more bytes than can be pinned.
    Auto,
}

impl CpuLayers {
    /// Reads `3,7,11` (these layers), `8` (so many), `0.5` (a share), `auto` or `none`. One layer is `3,`.
    ///
    /// # Errors
    ///
    /// A text that is none of these, with the part that was not understood.
    pub fn parse(text: &str) -> Result<Self, CpuLayersError> {
        let unknown = |part: &str| CpuLayersError::NotASpec { text: text.to_owned(), part: part.trim().to_owned() };
        let number = |part: &str| -> Result<u32, CpuLayersError> {
            let digits = part.trim();
            let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            all_digits.then(|| digits.parse().ok()).flatten().ok_or_else(|| unknown(part))
        };
        let trimmed = text.trim();
        if trimmed.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        if trimmed.eq_ignore_ascii_case("none") {
            return Ok(Self::None);
        }
        if let Some(list) = trimmed.strip_suffix(',').or(trimmed.contains(',').then_some(trimmed)) {
            return list
                .split(',')
                .map(|part| number(part).map(LayerId::new))
                .collect::<Result<_, _>>()
                .map(Self::List);
        }
        if trimmed.contains('.') {
            return Share::parse(trimmed).map(Self::Share).map_err(|_| unknown(trimmed));
        }
        number(trimmed).map(Self::Count)
    }

    /// The layers meant, ascending. `spared` are not taken: they hold no slots anyway.
    ///
    /// `has_cpu_code` tells whether the CPU can compute a layer; `pinnable_bytes` is what the host may pin, if that is
    /// known.
    ///
    /// # Errors
    ///
    /// A layer that the model does not have, that is listed twice or spared, or for which the CPU has no code; more
    /// layers than there are; with `auto`, an unknown number of pinnable bytes, too few for any layer, or rows that
    /// can be neither pinned nor left to the CPU.
    pub fn resolve(
        &self,
        model: &Model,
        spared: &[LayerId],
        has_cpu_code: impl Fn(LayerId) -> bool,
        pinnable_bytes: Option<u64>,
    ) -> Result<Vec<LayerId>, CpuLayersError> {
        let layer_count = model.layer_count();
        let can = |layer: &LayerId| !spared.contains(layer) && has_cpu_code(*layer);
        let from_both_ends = |wanted: u64| -> Result<Vec<LayerId>, CpuLayersError> {
            let possible = both_ends(layer_count).filter(can).count();
            if wanted > possible as u64 {
                return Err(CpuLayersError::TooMany { wanted, possible });
            }
            Ok(both_ends(layer_count).filter(can).take(wanted as usize).collect())
        };
        let mut layers = match self {
            Self::None => Vec::new(),
            Self::List(list) => {
                for (index, &layer) in list.iter().enumerate() {
                    if layer.index() >= layer_count {
                        return Err(CpuLayersError::UnknownLayer { layer, layer_count });
                    }
                    if list[..index].contains(&layer) {
                        return Err(CpuLayersError::Twice { layer });
                    }
                    if spared.contains(&layer) {
                        return Err(CpuLayersError::Resident { layer });
                    }
                    if !has_cpu_code(layer) {
                        let tag = model.layer(layer).tag().unwrap_or_default().to_vec();
                        return Err(CpuLayersError::NoCpuCode { layer, tag });
                    }
                }
                list.clone()
            }
            Self::Count(count) => from_both_ends(u64::from(*count))?,
            Self::Share(share) => from_both_ends(share.of(layer_count as u64))?,
            Self::Auto => match pinnable_bytes {
                None => return Err(CpuLayersError::PinnableUnknown),
                Some(pinnable) => auto(model, both_ends(layer_count).filter(can), spared, pinnable)?,
            },
        };
        layers.sort_unstable();
        Ok(layers)
    }
}

impl fmt::Display for CpuLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            // A list of one keeps its comma and the whole its point, or they would read as a count.
            Self::List(list) => match list.as_slice() {
                [one] => write!(f, "{one},"),
                _ => f.write_str(&list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")),
            },
            Self::Count(count) => write!(f, "{count}"),
            Self::Share(Share::WHOLE) => f.write_str("1.0"),
            Self::Share(Share::NOTHING) => f.write_str("0.0"),
            Self::Share(share) => write!(f, "{share}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

/// First, last, second, last but one, and so on.
fn both_ends(layer_count: usize) -> impl Iterator<Item = LayerId> {
    (0..layer_count)
        .map(move |turn| if turn % 2 == 0 { turn / 2 } else { layer_count - 1 - turn / 2 })
        .map(LayerId::from_index)
}

fn auto(
    model: &Model,
    candidates: impl Iterator<Item = LayerId>,
    spared: &[LayerId],
    pinnable: u64,
) -> Result<Vec<LayerId>, CpuLayersError> {
    let mut needed: u64 =
        model.layer_ids().filter(|layer| !spared.contains(layer)).map(|layer| model.layer_bytes(layer)).sum();
    let mut layers = Vec::new();
    for layer in candidates {
        if needed <= pinnable {
            break;
        }
        needed -= model.layer_bytes(layer);
        layers.push(layer);
    }
    if needed == 0 && !layers.is_empty() {
        let least = layers.iter().map(|&layer| model.layer_bytes(layer)).min().unwrap_or(0);
        return Err(CpuLayersError::NothingPinned { least, pinnable });
    }
    if needed > pinnable {
        return Err(CpuLayersError::Pinnable { needed, pinnable });
    }
    Ok(layers)
}
