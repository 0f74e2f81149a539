//! What lines of routing can get wrong.

use crate::TraceError;

/// Lines that are no trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// One line is wrong. Of a cell of several lines it is the last of them.
    #[error("line {line}: {wrong}")]
    Line {
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        wrong: Wrong,
    },
    /// A line too long to be held.
    #[error("line {line} has over {most} bytes; at most {most} are read")]
    LineTooLong {
        /// The line, counted from 1.
        line: u64,
        /// The most.
        most: usize,
    },
    /// No line has routes.
    #[error("no line has routes; at least 1 is needed")]
    NoRoutes,
    /// The bytes cannot be read, or the sizes are none that a trace can have.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// What is wrong with one line. Tokens and layers are those that the file names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Wrong {
    /// The file is of another form.
    #[error("{expected:?} is read here; found {found:?}")]
    Form {
        /// How the line should be.
        expected: &'static str,
        /// Its start.
        found: String,
    },
    /// A header that lacks something, found where it was needed.
    #[error("{key:?} is missing: it must stand before the first routes")]
    MissingHeader {
        /// What is missing.
        key: &'static str,
    },
    /// A line that lacks something.
    #[error("{key:?} is missing")]
    MissingKey {
        /// What is missing.
        key: &'static str,
    },
    /// No JSON, or a value of a wrong type.
    #[error("{text} at column {column}")]
    Json {
        /// The byte of the line, counted from 1.
        column: usize,
        /// What is wrong there.
        text: String,
    },
    /// A field that is no number, or one that does not fit.
    #[error("{key:?} is {found:?}; a whole number is read here")]
    Number {
        /// The field.
        key: &'static str,
        /// What it holds.
        found: String,
    },
    /// A size of 0.
    #[error("{key:?} is 0; at least 1 is needed")]
    Zero {
        /// What is 0.
        key: &'static str,
    },
    /// A number that is too large.
    #[error("{key:?} is {found}; at most {most} are read")]
    AtMost {
        /// What is too large.
        key: &'static str,
        /// What it is.
        found: u32,
        /// The most.
        most: u32,
    },
    /// A line of more or fewer fields than the columns' line.
    #[error("{found} fields; the columns are {expected}")]
    Fields {
        /// Columns.
        expected: usize,
        /// Fields of the line.
        found: usize,
    },
    /// A phase that is neither prefill nor decode.
    #[error("\"phase\" is {found}; 0 (prefill) and 1 (decode) are read here")]
    Phase {
        /// What was found.
        found: u64,
    },
    /// A number that the header and the caller give differently.
    #[error("{key:?} is {found}; {given} was given")]
    Differs {
        /// What differs.
        key: &'static str,
        /// In the file.
        found: u64,
        /// By the caller.
        given: u64,
    },
    /// `topk` is of no shape that is read.
    #[error("\"topk\" is neither a list of ids nor, without a \"layer\", a list of such lists")]
    TopKShape,
    /// A layer past the last, or one without experts.
    #[error("token {token}, layer {layer}: there are {layers} layers with experts")]
    Layer {
        /// The token.
        token: u64,
        /// The layer.
        layer: u64,
        /// How many have experts.
        layers: u64,
    },
    /// A layer too high to be believed without a header that says so.
    #[error("token {token}, layer {layer}: without \"layers\" in the first line, layers below {most} are read")]
    LayerBound {
        /// The token.
        token: u64,
        /// The layer.
        layer: u32,
        /// The bound.
        most: u32,
    },
    /// A token of another number of layers.
    #[error("token {token}: {found} layers; {expected} expected")]
    LayerCount {
        /// The token.
        token: u64,
        /// Layers of it.
        found: usize,
        /// Layers there are.
        expected: u32,
    },
    /// An id past the experts.
    #[error("token {token}, layer {layer}: expert {id}; there are {experts} experts")]
    Id {
        /// The token.
        token: u64,
        /// The layer.
        layer: u32,
        /// The id.
        id: i64,
        /// Experts of a layer.
        experts: u32,
    },
    /// An id twice in a cell.
    #[error("token {token}, layer {layer}: expert {id} both at place {first} and at place {second}")]
    IdTwice {
        /// The token.
        token: u64,
        /// The layer.
        layer: u32,
        /// The id.
        id: i64,
        /// Its first place.
        first: usize,
        /// Its next.
        second: usize,
    },
    /// A cell of another number of ids.
    #[error("token {token}, layer {layer}: {found} ids; {expected} expected")]
    TopK {
        /// The token.
        token: u64,
        /// The layer.
        layer: u32,
        /// Ids of the cell.
        found: usize,
        /// Ids of a cell.
        expected: usize,
    },
    /// Lines of a cell out of order.
    #[error("token {token}, layer {layer}: slot {found}; {expected} expected")]
    Place {
        /// The token.
        token: u64,
        /// The layer.
        layer: u32,
        /// The place in the file.
        found: u64,
        /// The next.
        expected: usize,
    },
    /// A layer twice for one token.
    #[error("token {token}, layer {layer} a second time; the first was on line {first}")]
    LayerTwice {
        /// The token.
        token: u64,
        /// The layer.
        layer: u32,
        /// Where it was before.
        first: u64,
    },
    /// Tokens of a layer out of order.
    #[error("token {token}, layer {layer} after token {last}; tokens ascend in a layer")]
    TokenOrder {
        /// The token.
        token: u64,
        /// The layer.
        layer: u32,
        /// The one before it.
        last: u64,
    },
    /// A token left out.
    #[error("token {token}, layer {layer}: token {expected} is next")]
    TokenGap {
        /// The token.
        token: u64,
        /// The layer.
        layer: u32,
        /// The first that no line had.
        expected: u64,
    },
    /// A segment that starts at no token that it could.
    #[error("token {token} starts {name:?}; 0, {here} (its request's next) or {all} (the file's next) is read here")]
    SegmentStart {
        /// The token.
        token: u64,
        /// The segment.
        name: String,
        /// The next of the same request.
        here: u64,
        /// The tokens of all segments before.
        all: u64,
    },
    /// A turn before the last.
    #[error("turn {turn}, phase {phase} after turn {last_turn}, phase {last_phase}")]
    TurnOrder {
        /// The turn.
        turn: u64,
        /// Its phase.
        phase: u64,
        /// The turn before.
        last_turn: u64,
        /// Its phase.
        last_phase: u64,
    },
    /// A request whose lines do not stand together.
    #[error("request {request:?} again; its lines must stand together")]
    RequestAgain {
        /// The request.
        request: String,
    },
}
