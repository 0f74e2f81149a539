//! `cargo xtask abi`: testdata/abi.txt, what programs that were compiled with the header rely on: sizes, offsets, numbers
//! and declarations.
//!
//! The header says what there is, in its own order, and a C program says how it lies in memory. Pointers are of 64 bits:
//! the library is built for no others. Against the committed file, what was added is told apart from what no longer serves
//! a program that exists.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::native::cc;
use crate::run::{Outcome, command, output, root, target};

const SNAPSHOT: &str = "testdata/abi.txt";

/// What the file begins with.
const HEAD: &str = "64-bit pointers";

/// One declaration of the header.
#[derive(Debug, PartialEq, Eq)]
enum Item {
    Macro {
        name: String,
    },
    Enum {
        name: String,
        constants: Vec<String>,
    },
    Struct {
        name: String,
        fields: Vec<Field>,
    },
    /// A handle, of which C knows the name alone.
    Opaque {
        name: String,
    },
    /// A function's type or a function: its name, and its declaration without the names of parameters.
    Callback {
        name: String,
        declaration: String,
    },
    Function {
        name: String,
        declaration: String,
    },
}

#[derive(Debug, PartialEq, Eq)]
struct Field {
    name: String,
    kind: String,
}

/// The text without comments.
fn without_comments(text: &str) -> String {
    let (mut code, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        code.push_str(&rest[..at]);
        let (end, skipped) = if rest[at..].starts_with("/*") { ("*/", 2) } else { ("\n", 0) };
        rest = rest[at..].find(end).map_or("", |length| &rest[at + length + skipped..]);
    }
    code + rest
}

/// One blank between words, none around stars and brackets, so that line breaks mean nothing.
fn normal(text: &str) -> String {
    let mut text = text.split_whitespace().filter(|&word| word != "struct").collect::<Vec<_>>().join(" ");
    for mark in ["*", "(", ")", ","] {
        text = text.replace(&format!(" {mark}"), mark).replace(&format!("{mark} "), mark);
    }
    text.replace('*', " *").replace("* *", "**").replace(", ", ",").replace(',', ", ")
}

/// A declaration in two: the type, and the name that ends it.
fn type_and_name(text: &str) -> Outcome<(String, String)> {
    let text = text.trim();
    let at = text.rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |at| at + 1);
    let (kind, name) = text.split_at(at);
    if kind.trim().is_empty() || name.is_empty() {
        return Err(format!("include/ftcache.h: `{text}` is not a type and a name"));
    }
    Ok((normal(kind).trim().to_owned(), name.to_owned()))
}

/// `uint32_t layer, void *stream` as `uint32_t, void *`: a parameter's name binds nobody.
fn parameters(text: &str) -> Outcome<String> {
    if text.trim() == "void" {
        return Ok("void".to_owned());
    }
    let kinds = text.split(',').map(|one| type_and_name(one).map(|(kind, _)| kind)).collect::<Outcome<Vec<_>>>()?;
    Ok(kinds.join(", "))
}

/// What stands between two marks, and what comes before.
fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str)> {
    let (before, rest) = text.split_once(open)?;
    Some((before, rest.rsplit_once(close)?.0))
}

/// A declaration, its semicolon not included; `None` for the second name of what has one already.
fn item(text: &str) -> Outcome<Option<Item>> {
    let text = text.trim();
    let strange = || format!("include/ftcache.h: `{}` is no declaration that is known here", normal(text));
    if let Some((head, body)) = between(text, "{", "}") {
        let words: Vec<&str> = head.split_whitespace().collect();
        return match words[..] {
            ["enum", name, ..] => {
                let constants = body.split(',').map(str::trim).filter(|constant| !constant.is_empty());
                let names = constants.map(|constant| Some(constant.split_once('=')?.0.trim().to_owned()));
                let constants = names.collect::<Option<Vec<_>>>().ok_or_else(strange)?;
                Ok(Some(Item::Enum { name: name.to_owned(), constants }))
            }
            ["typedef", "struct", name] => {
                let fields = body.split(';').map(str::trim).filter(|field| !field.is_empty());
                let fields = fields.map(|field| type_and_name(field).map(|(kind, name)| Field { name, kind }));
                Ok(Some(Item::Struct { name: name.to_owned(), fields: fields.collect::<Outcome<_>>()? }))
            }
            _ => Err(strange()),
        };
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["typedef", "enum", ..] | ["typedef", _, _] => return Ok(None),
        ["typedef", "struct", name, again] if name == again => {
            return Ok(Some(Item::Opaque { name: name.to_owned() }));
        }
        _ => {}
    }
    let Some((head, inside)) = between(text, "(", ")") else { return Err(strange()) };
    if let Some(result) = head.strip_prefix("typedef ") {
        let (name, inside) = inside.split_once(')').ok_or_else(strange)?;
        let name = name.trim_start_matches(['*', ' ']).trim().to_owned();
        let declared = parameters(inside.trim_start_matches([' ', '(']))?;
        let declaration = format!("{} (*)({declared})", normal(result).trim());
        return Ok(Some(Item::Callback { name, declaration }));
    }
    let head = head.trim();
    let (kind, name) = type_and_name(head.strip_prefix("FTCACHE_MUST_USE").unwrap_or(head))?;
    let declaration = format!("{kind} ({})", parameters(inside)?);
    Ok(Some(Item::Function { name, declaration }))
}

/// What the header declares, in its order.
fn items(header: &str) -> Outcome<Vec<Item>> {
    let code = without_comments(header);
    let mut items = Vec::new();
    let mut statement = String::new();
    let mut depth = 0;
    for line in code.lines() {
        if let Some(directive) = line.trim_start().strip_prefix('#') {
            let words: Vec<&str> = directive.split_whitespace().collect();
            if let ["define", name, value] = words[..]
                && value.starts_with(|c: char| c.is_ascii_digit() || c == '(')
            {
                items.push(Item::Macro { name: name.to_owned() });
            }
            continue;
        }
        if line.trim() == "extern \"C\" {" || (depth == 0 && line.trim() == "}") {
            continue;
        }
        for c in line.chars().chain(['\n']) {
            depth += match c {
                '{' => 1,
                '}' => -1,
                _ => 0,
            };
            if c == ';' && depth == 0 {
                items.extend(item(&std::mem::take(&mut statement))?);
            } else {
                statement.push(c);
            }
        }
    }
    match statement.trim() {
        "" => Ok(items),
        left => Err(format!("include/ftcache.h ends within `{left}`")),
    }
}

/// A C program that writes the snapshot of these items.
fn program(items: &[Item]) -> String {
    let mut source = String::from("#include <stdio.h>\n#include \"ftcache.h\"\n\n");
    source.push_str("_Static_assert(sizeof(void *) == 8, \"the ABI is that of 64-bit pointers\");\n\n");
    let _ = writeln!(source, "int main(void) {{\n    puts({HEAD:?});");
    let mut line = |format: String, values: &[String]| {
        let values: String = values.iter().map(|value| format!(", (long long)({value})")).collect();
        let _ = writeln!(source, "    printf(\"{format}\\n\"{values});");
    };
    for item in items {
        match item {
            Item::Macro { name } => line(format!("macro {name} %lld"), std::slice::from_ref(name)),
            Item::Enum { name, constants } => {
                line(format!("enum {name} size %lld"), &[format!("sizeof({name})")]);
                for constant in constants {
                    line(format!("  {constant} %lld"), std::slice::from_ref(constant));
                }
            }
            Item::Struct { name, fields } => {
                let sizes = [format!("sizeof({name})"), format!("_Alignof({name})")];
                line(format!("struct {name} size %lld align %lld"), &sizes);
                for Field { name: field, kind } in fields {
                    let places = [format!("offsetof({name}, {field})"), format!("sizeof((({name} *)0)->{field})")];
                    line(format!("  {field} at %lld size %lld: {kind}"), &places);
                }
            }
            Item::Opaque { name } => line(format!("opaque {name}"), &[]),
            Item::Callback { name, declaration } => line(format!("callback {name}: {declaration}"), &[]),
            Item::Function { name, declaration } => line(format!("function {name}: {declaration}"), &[]),
        }
    }
    source + "    return 0;\n}\n"
}

/// The snapshot of the header as it is.
fn snapshot() -> Outcome<String> {
    let header = std::fs::read_to_string(root().join("include/ftcache.h"));
    let items = items(&header.map_err(|error| format!("include/ftcache.h: {error}"))?)?;
    // Of this process alone: tests run beside each other.
    let folder = target().join("xtask").join(format!("abi-{}", std::process::id()));
    let at = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(&folder).map_err(at)?;
    let (source, built) = (folder.join("abi.c"), folder.join(format!("abi{}", std::env::consts::EXE_SUFFIX)));
    std::fs::write(&source, program(&items)).map_err(at)?;
    let mut compile = cc()?;
    compile.arg("-std=c11").arg("-I").arg(root().join("include")).arg(&source).arg("-o").arg(&built);
    let written = output(&mut compile).and_then(|_| output(&mut command(&built)));
    std::fs::remove_dir_all(&folder).map_err(at)?;
    written
}

/// A line of the snapshot that begins at the margin, with those below it that do not.
#[derive(Debug, PartialEq, Eq)]
struct Entry<'a> {
    /// `struct`, `enum`, ...
    sort: &'a str,
    name: &'a str,
    /// What follows the name.
    value: &'a str,
    /// Fields or constants, in order.
    parts: Vec<(&'a str, &'a str)>,
}

fn entries(text: &str) -> Outcome<Vec<Entry<'_>>> {
    let strange = |line: &str| format!("{SNAPSHOT}: `{line}` is no line of it");
    let mut lines = text.lines();
    if lines.next() != Some(HEAD) {
        return Err(format!("{SNAPSHOT} does not begin with `{HEAD}`"));
    }
    let mut entries: Vec<Entry> = Vec::new();
    for line in lines {
        if let Some(part) = line.strip_prefix("  ") {
            let part = part.split_once(' ').ok_or_else(|| strange(line))?;
            entries.last_mut().ok_or_else(|| strange(line))?.parts.push(part);
        } else {
            let (sort, rest) = line.split_once(' ').ok_or_else(|| strange(line))?;
            let (name, value) = rest.split_once([' ', ':']).unwrap_or((rest, ""));
            entries.push(Entry { sort, name, value: value.trim(), parts: Vec::new() });
        }
    }
    Ok(entries)
}

/// The number after a word: `at 8 size 4` has 8 after `at`.
fn number(text: &str, word: &str) -> Outcome<u64> {
    let mut words = text.split([' ', ':']);
    let found = words.find(|&found| found == word).and_then(|_| words.next()?.parse().ok());
    found.ok_or_else(|| format!("{SNAPSHOT}: `{text}` has no {word}"))
}

/// What has changed from one snapshot to another, an item a line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    /// Programs that exist do not know of them.
    additions: Vec<String>,
    /// Programs that exist are not served.
    breaks: Vec<String>,
}

impl Changes {
    fn between(before: &str, now: &str) -> Outcome<Self> {
        let mut changes = Self::default();
        let (before, now) = (entries(before)?, entries(now)?);
        let by_name: BTreeMap<_, _> = now.iter().map(|entry| (entry.name, entry)).collect();
        for was in &before {
            match by_name.get(was.name) {
                Some(is) if is.sort == was.sort => changes.entry(was, is)?,
                Some(is) => {
                    changes.breaks.push(format!("{} was declared as {} and is as {}", was.name, was.sort, is.sort))
                }
                None => changes.breaks.push(format!("{} {} is gone", was.sort, was.name)),
            }
        }
        for is in now.iter().filter(|is| before.iter().all(|was| was.name != is.name)) {
            changes.additions.push(format!("{} {}", is.sort, is.name));
        }
        Ok(changes)
    }

    fn entry(&mut self, was: &Entry, is: &Entry) -> Outcome {
        match was.sort {
            "struct" => return self.structure(was, is),
            // The version of the header grows with what is added.
            "macro" if was.value.parse::<i64>().ok() < is.value.parse().ok() => {
                self.additions.push(format!("macro {} grew from {} to {}", was.name, was.value, is.value));
            }
            _ => self.must_be(&format!("{} {}", was.sort, was.name), was.value, is.value),
        }
        for &(name, value) in &was.parts {
            let what = format!("{name} of {}", was.name);
            match is.parts.iter().find(|part| part.0 == name) {
                Some(part) => self.must_be(&what, value, part.1),
                None => self.breaks.push(format!("{what} is gone; it was {value}")),
            }
        }
        for (name, value) in is.parts.iter().filter(|part| was.parts.iter().all(|old| old.0 != part.0)) {
            self.additions.push(format!("{name} of {}: {value}", was.name));
        }
        Ok(())
    }

    fn structure(&mut self, was: &Entry, is: &Entry) -> Outcome {
        let name = was.name;
        let (old_size, new_size) = (number(was.value, "size")?, number(is.value, "size")?);
        // Only a struct that says its size may get a longer one.
        let may_grow = was.parts.first().is_some_and(|part| part.0 == "struct_size");
        if new_size < old_size || (new_size > old_size && !may_grow) {
            self.breaks.push(format!("struct {name} was of {old_size} bytes and is of {new_size}"));
        }
        let (old_align, new_align) = (number(was.value, "align")?, number(is.value, "align")?);
        self.must_be(&format!("the alignment of struct {name}"), &old_align.to_string(), &new_align.to_string());

        let has = |entry: &Entry, name: &str| entry.parts.iter().any(|part| part.0 == name);
        for &(field, place) in &was.parts {
            let what = format!("{field} of {name}");
            if let Some(part) = is.parts.iter().find(|part| part.0 == field) {
                self.must_be(&what, place, part.1);
                continue;
            }
            // What had to be 0 may be given a meaning.
            let named = is.parts.iter().find(|part| part.1 == place && !has(was, part.0));
            match named.filter(|_| field.starts_with("reserved")) {
                Some(part) => self.additions.push(format!("{what} is named {}: {place}", part.0)),
                None => self.breaks.push(format!("{what} is gone; it was {place}")),
            }
        }
        for &(field, place) in is.parts.iter().filter(|part| !has(was, part.0)) {
            let what = format!("{field} of {name}");
            if number(place, "at")? >= old_size {
                self.additions.push(format!("{what}: {place}"));
            } else if !was.parts.iter().any(|part| part.0.starts_with("reserved") && part.1 == place) {
                // Where there was padding, a program that exists has whatever was there.
                self.breaks.push(format!("{what}: {place}, within the {old_size} bytes that there were"));
            }
        }
        Ok(())
    }

    fn must_be(&mut self, what: &str, was: &str, is: &str) {
        if was != is {
            self.breaks.push(format!("{what} was {was} and is {is}"));
        }
    }
}

/// Says nothing if a snapshot is the committed one, else which kind of difference there is, and all of that kind.
fn compare(committed: &str, fresh: &str) -> Outcome {
    if committed == fresh {
        return Ok(());
    }
    let Changes { additions, breaks } = Changes::between(committed, fresh)?;
    let list = |changes: Vec<String>| changes.iter().map(|change| format!("\n  {change}")).collect::<String>();
    if !breaks.is_empty() {
        return Err(format!("include/ftcache.h no longer serves programs that exist:{}", list(breaks)));
    }
    if !additions.is_empty() {
        return Err(format!("additions: run cargo xtask abi{}", list(additions)));
    }
    Err(format!("{SNAPSHOT} has another order than include/ftcache.h: run cargo xtask abi"))
}

/// Writes the snapshot. A break is told and written all the same: whoever commits it sees it in the difference.
pub(crate) fn write() -> Outcome {
    let path = root().join(SNAPSHOT);
    let fresh = snapshot()?;
    if let Ok(committed) = std::fs::read_to_string(&path)
        && let Err(told) = compare(&committed, &fresh)
    {
        println!("{told}");
    }
    std::fs::write(&path, fresh).map_err(|error| format!("{SNAPSHOT}: {error}"))
}

/// Says whether the snapshot is the header's.
pub(crate) fn check() -> Outcome {
    let committed = std::fs::read_to_string(root().join(SNAPSHOT)).map_err(|error| format!("{SNAPSHOT}: {error}"))?;
    compare(&committed, &snapshot()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_abi_is_that_of_the_snapshot() {
        check().unwrap_or_else(|error| panic!("{error}"));
    }

    const HEADER: &str = "\
/* cache *make(void); */
#ifndef FTCACHE_H
#define FTCACHE_H
#define FTCACHE_ABI_VERSION 1
#define FTCACHE_MUST_USE __attribute__((warn_unused_result))
// A colour.
enum colour
#if defined(__cplusplus)
  : uint32_t
#endif // defined(__cplusplus)
 {
    // Red; the default.
    COLOUR_RED = 0,
    COLOUR_BLUE = 3,
};
#ifndef __cplusplus
typedef enum colour colour;
typedef uint32_t colour;
#endif
typedef struct cache cache;
typedef struct shape {
    uint32_t struct_size;
    // { not a brace
    const struct shape *next;
} shape;
typedef void (*told)(void *user, uint32_t level);
extern \"C\" {
FTCACHE_MUST_USE
status cache_new(const char *const *paths,
                 struct cache **out);
const char *last_error(void);
}  // extern \"C\"
#endif  /* FTCACHE_H */
";

    #[test]
    fn the_header_is_read_in_its_order() {
        let text = |text: &str| text.to_owned();
        let field = |name: &str, kind: &str| Field { name: text(name), kind: text(kind) };
        let function =
            |name: &str, declaration: &str| Item::Function { name: text(name), declaration: text(declaration) };
        let wanted = [
            Item::Macro { name: text("FTCACHE_ABI_VERSION") },
            Item::Enum { name: text("colour"), constants: vec![text("COLOUR_RED"), text("COLOUR_BLUE")] },
            Item::Opaque { name: text("cache") },
            Item::Struct {
                name: text("shape"),
                fields: vec![field("struct_size", "uint32_t"), field("next", "const shape *")],
            },
            Item::Callback { name: text("told"), declaration: text("void (*)(void *, uint32_t)") },
            function("cache_new", "status (const char *const *, cache **)"),
            function("last_error", "const char * (void)"),
        ];
        assert_eq!(items(HEADER).unwrap(), wanted);
    }

    const BEFORE: &str = "\
64-bit pointers
macro VERSION 1
enum colour size 4
  RED 0
  BLUE 3
struct shape size 16 align 8
  struct_size at 0 size 4: uint32_t
  reserved at 4 size 4: uint32_t
  next at 8 size 8: const shape *
struct copy size 8 align 4
  slot at 0 size 4: uint32_t
  row at 4 size 4: uint32_t
struct gap size 16 align 8
  struct_size at 0 size 4: uint32_t
  next at 8 size 8: const shape *
function cache_new: status (cache **)
function cache_free: void (cache *)
";

    /// What is told of a snapshot in which one text stands for another.
    fn told(from: &str, to: &str) -> String {
        assert!(BEFORE.contains(from), "{from}");
        compare(BEFORE, &BEFORE.replace(from, to)).err().unwrap_or_default()
    }

    #[test]
    fn additions_ask_for_a_new_snapshot() {
        let check = |from: &str, to: &str, wanted: &str| {
            let wanted = format!("additions: run cargo xtask abi\n  {wanted}");
            assert_eq!(told(from, to), wanted);
        };
        assert_eq!(told("RED 0", "RED 0"), "");
        check("macro VERSION 1", "macro VERSION 2", "macro VERSION grew from 1 to 2");
        check("macro VERSION 1\n", "macro VERSION 1\nmacro MOST 9\n", "macro MOST");
        check("  BLUE 3\n", "  BLUE 3\n  GREEN 2\n", "GREEN of colour: 2");
        check("function cache_new", "function cache_get: void (void)\nfunction cache_new", "function cache_get");
        check("struct copy", "struct run size 4 align 4\n  row at 0 size 4: uint32_t\nstruct copy", "struct run");
        check(
            "shape size 16 align 8",
            "shape size 24 align 8\n  more at 16 size 8: uint64_t",
            "more of shape: at 16 size 8: uint64_t",
        );
        check("  reserved at 4", "  colour at 4", "reserved of shape is named colour: at 4 size 4: uint32_t");
    }

    #[test]
    fn breaks_are_named_with_both_values() {
        let check = |from: &str, to: &str, wanted: &[&str]| {
            let wanted: String = wanted.iter().map(|line| format!("\n  {line}")).collect();
            assert_eq!(told(from, to), format!("include/ftcache.h no longer serves programs that exist:{wanted}"));
        };
        check("macro VERSION 1", "macro VERSION 0", &["macro VERSION was 1 and is 0"]);
        check("  BLUE 3\n", "  BLUE 4\n", &["BLUE of colour was 3 and is 4"]);
        check("  BLUE 3\n", "", &["BLUE of colour is gone; it was 3"]);
        check("colour size 4", "colour size 1", &["enum colour was size 4 and is size 1"]);
        check("function cache_free: void (cache *)\n", "", &["function cache_free is gone"]);
        check(
            "(cache **)",
            "(cache **, int)",
            &["function cache_new was status (cache **) and is status (cache **, int)"],
        );
        check(
            "shape size 16 align 8",
            "shape size 8 align 4",
            &["struct shape was of 16 bytes and is of 8", "the alignment of struct shape was 8 and is 4"],
        );
        check(
            "slot at 0 size 4: uint32_t\n  row at 4",
            "row at 0 size 4: uint32_t\n  slot at 4",
            &[
                "slot of copy was at 0 size 4: uint32_t and is at 4 size 4: uint32_t",
                "row of copy was at 4 size 4: uint32_t and is at 0 size 4: uint32_t",
            ],
        );
        // It does not say its size, so nobody could tell.
        check(
            "copy size 8 align 4",
            "copy size 12 align 4\n  bank at 8 size 4: uint32_t",
            &["struct copy was of 8 bytes and is of 12"],
        );
        check(
            "struct gap size 16 align 8",
            "struct gap size 16 align 8\n  more at 4 size 4: uint32_t",
            &["more of gap: at 4 size 4: uint32_t, within the 16 bytes that there were"],
        );
        check("struct copy", "enum copy", &["copy was declared as struct and is as enum"]);
        check("  reserved at 4 size 4: uint32_t\n", "", &["reserved of shape is gone; it was at 4 size 4: uint32_t"]);
        // A break is not lost among additions.
        check("  BLUE 3\n", "  BLUE 4\n  GREEN 2\n", &["BLUE of colour was 3 and is 4"]);
    }

    #[test]
    fn another_order_is_neither() {
        let now = BEFORE.replace("  RED 0\n  BLUE 3\n", "  BLUE 3\n  RED 0\n");
        let wanted = "testdata/abi.txt has another order than include/ftcache.h: run cargo xtask abi";
        assert_eq!(compare(BEFORE, &now).unwrap_err(), wanted);
    }

    #[test]
    fn every_struct_that_says_its_size_is_tried_in_others() {
        let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
        let (committed, tests) = (read(SNAPSHOT), read("ffi-tests/sizes.c"));
        let entries = entries(&committed).unwrap();
        let says_its_size = |entry: &&Entry| entry.parts.first().is_some_and(|part| part.0 == "struct_size");
        let sized: Vec<&Entry> = entries.iter().filter(says_its_size).collect();
        assert!(!sized.is_empty());
        for entry in sized {
            let is_tried = tests.contains(&format!("PUT({}, ", entry.name));
            assert!(is_tried, "ffi-tests/sizes.c has no INPUT or OUTPUT of {}", entry.name);
        }
    }

    /// A field that takes the place of padding would be read from programs that never set it, so there is no padding.
    #[test]
    fn structs_have_no_holes() {
        let committed = std::fs::read_to_string(root().join(SNAPSHOT)).unwrap();
        for entry in entries(&committed).unwrap().iter().filter(|entry| entry.sort == "struct") {
            let mut end = 0;
            for (field, place) in &entry.parts {
                assert_eq!(number(place, "at").unwrap(), end, "{field} of {}", entry.name);
                end += number(place, "size").unwrap();
            }
            assert_eq!(number(entry.value, "size").unwrap(), end, "the end of {}", entry.name);
        }
    }
}
