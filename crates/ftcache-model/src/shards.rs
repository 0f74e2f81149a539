//! The files of a split model: `NAME-00001-of-00003.gguf` and its siblings, found from any one of them.
//!
//! The metadata says which shard a file is; the name only leads to the others. Where the two disagree, or two shards
//! do, nothing is read: half of one model and half of another would pass for a whole.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::{Gguf, ModelError};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSOR_COUNT: &str = "split.tensors.count";

/// Opens a model: one file, or all its shards in order when `path` is any of them.
///
/// # Errors
///
/// A file that [`Gguf::open`] refuses; a shard that is missing, misnamed, or of another model than the rest.
pub fn open_shards(path: &Path) -> Result<Vec<Gguf>, ModelError> {
    let given = Gguf::open(path)?;
    let named = shard_name(path);
    let count = match given.number(COUNT)? {
        Some(count) => count,
        // A shard's name over a file that knows of no shards: the rest of the model would go unnoticed.
        None if named.as_ref().is_some_and(|name| name.count > 1) => return Err(given.missing(COUNT)),
        None => return Ok(vec![given]),
    };
    if count <= 1 {
        return Ok(vec![given]);
    }
    let number = given.number(NUMBER)?.ok_or_else(|| given.missing(NUMBER))?;
    let name = named.filter(|name| (name.number, name.count) == (u64::from(number) + 1, count.into()));
    let Some(name) = name else {
        return Err(ModelError::ShardName {
            path: path.to_owned(),
            number: u64::from(number) + 1,
            count: count.into(),
            expected: ending(u64::from(number) + 1, count.into()),
        });
    };

    // All are looked for before any is opened, so that a missing file is named before a broken one.
    let paths: Vec<PathBuf> = siblings(path, &name.prefix, count)?;
    let mut given = Some(given);
    let mut shards = Vec::with_capacity(paths.len());
    for (index, path) in paths.iter().enumerate() {
        let shard = match given.take_if(|_| index as u64 == u64::from(number)) {
            Some(given) => given,
            None => Gguf::open(path)?,
        };
        check_number(&shard, COUNT, count.into())?;
        check_number(&shard, NUMBER, index as u64)?;
        shards.push(shard);
    }
    check_tensors(&shards)?;
    Ok(shards)
}

struct ShardName {
    prefix: String,
    number: u64,
    count: u64,
}

/// What a name like `NAME-00001-of-00003.gguf` says.
fn shard_name(path: &Path) -> Option<ShardName> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let parse = |digits: &str| -> Option<u64> {
        // Five digits, as `%05d` writes them; more only from 100,000 on.
        (digits.len() >= 5 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
    };
    Some(ShardName { prefix: prefix.to_owned(), number: parse(number)?, count: parse(count)? })
}

fn ending(number: u64, count: u64) -> String {
    format!("-{number:05}-of-{count:05}.gguf")
}

fn siblings(path: &Path, prefix: &str, count: u32) -> Result<Vec<PathBuf>, ModelError> {
    let mut paths = Vec::new();
    for number in 1..=u64::from(count) {
        let path = path.with_file_name(format!("{prefix}{}", ending(number, count.into())));
        if !path.exists() {
            return Err(ModelError::ShardMissing { path, number, count: count.into() });
        }
        paths.push(path);
    }
    Ok(paths)
}

fn check_number(shard: &Gguf, key: &'static str, needed: u64) -> Result<(), ModelError> {
    let found = u64::from(shard.number(key)?.ok_or_else(|| shard.missing(key))?);
    if found != needed {
        return Err(ModelError::ShardMismatch { path: shard.path().to_owned(), key, needed, found });
    }
    Ok(())
}

/// That the shards have as many tensors as each says, and none twice.
fn check_tensors(shards: &[Gguf]) -> Result<(), ModelError> {
    let total: u64 = shards.iter().map(|shard| shard.tensors().len() as u64).sum();
    for shard in shards {
        check_number(shard, TENSOR_COUNT, total)?;
    }
    let mut places: HashMap<&str, &Path> = HashMap::new();
    for shard in shards {
        for tensor in shard.tensors() {
            if let Some(first) = places.insert(tensor.name(), shard.path()) {
                return Err(ModelError::DuplicateTensor {
                    path: shard.path().to_owned(),
                    first: first.to_owned(),
                    tensor: tensor.name().to_owned(),
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, expected: Option<(&str, u64, u64)>) {
        let name = shard_name(Path::new(path));
        let found = name.as_ref().map(|name| (name.prefix.as_str(), name.number, name.count));
        assert_eq!(found, expected, "{path}");
    }

    #[test]
    fn names_of_shards() {
        check("a/model-00001-of-00003.gguf", Some(("model", 1, 3)));
        check("a-00002-of-00002-00003-of-00009.gguf", Some(("a-00002-of-00002", 3, 9)));
        check("-00001-of-00001.gguf", Some(("", 1, 1)));
        check("m-123456-of-123456.gguf", Some(("m", 123456, 123456)));
        check("model.gguf", None);
        check("model-1-of-3.gguf", None);
        check("model-00001-of-00003.bin", None);
        check("model-0000x-of-00003.gguf", None);
        check("model-00001-of-+0003.gguf", None);
        check("model-00001-of-99999999999999999999999.gguf", None);
        check("00001-of-00003.gguf", None);
    }
}
