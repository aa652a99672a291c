//! What a held process prints, on its way to the server.
//!
//! The shim appends frames, one for each line, to segments that are named by the position of their first byte. When a segment
//! has half of what may be kept, another begins and the one before the last goes: a reader that does not come loses the
//! oldest part, never the end, and sees from the positions how much it lost.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use super::private_file;

/// Beginning of the name of a segment.
const SEGMENT: &str = "output.";
/// Bytes before the text of a frame: its kind and its length.
const HEADER: usize = 5;
/// Bytes of frames that are read at once, unless one is longer.
const READ_BYTES: usize = 256 * 1024;

/// Something a process printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A line on standard output.
    Said { text: String, cut: bool },
    /// A line on standard error, or the beginning of a long one.
    Complained(String),
    /// Output is missing here: the disk did not take it.
    Missing,
}

impl Frame {
    fn kind(&self) -> u8 {
        match self {
            Self::Said { cut: false, .. } => b'o',
            Self::Said { cut: true, .. } => b'O',
            Self::Complained(_) => b'e',
            Self::Missing => b'm',
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Said { text, .. } | Self::Complained(text) => text,
            Self::Missing => "",
        }
    }

    fn of(kind: u8, text: Vec<u8>) -> Self {
        let text = String::from_utf8(text).unwrap_or_default();
        match kind {
            b'o' => Self::Said { text, cut: false },
            b'O' => Self::Said { text, cut: true },
            b'e' => Self::Complained(text),
            _ => Self::Missing,
        }
    }
}

/// The writing end, in the shim.
pub(super) struct Writer {
    dir: PathBuf,
    segment_bytes: u64,
    file: File,
    start: u64,
    length: u64,
    /// Where the segment before this one starts.
    before: Option<u64>,
    is_missing: bool,
}

impl Writer {
    pub(super) fn new(dir: &Path, output_bytes: u64) -> io::Result<Self> {
        Ok(Self {
            file: private_file(&segment(dir, 0))?,
            dir: dir.to_owned(),
            segment_bytes: (output_bytes / 2).max(1),
            start: 0,
            length: 0,
            before: None,
            is_missing: false,
        })
    }

    /// Appends a frame. A disk that is full must not end the agent: what it does not take is missing, and that is told once
    /// it takes something again.
    pub(super) fn write(&mut self, frame: &Frame) {
        let marked = !self.is_missing || self.append(&Frame::Missing).is_ok();
        self.is_missing = !marked || self.append(frame).is_err();
    }

    fn append(&mut self, frame: &Frame) -> io::Result<()> {
        if self.length >= self.segment_bytes {
            let start = self.start + self.length;
            self.file = private_file(&segment(&self.dir, start))?;
            if let Some(before) = self.before.replace(self.start) {
                let _ = std::fs::remove_file(segment(&self.dir, before));
            }
            (self.start, self.length) = (start, 0);
        }
        let text = frame.text().as_bytes();
        let mut bytes = Vec::with_capacity(HEADER + text.len());
        bytes.push(frame.kind());
        bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(text);
        let written = self.file.write_all(&bytes);
        if written.is_err() {
            // Half a frame would spoil everything after it.
            let _ = self.file.set_len(self.length);
            let _ = self.file.seek(io::SeekFrom::Start(self.length));
        } else {
            self.length += bytes.len() as u64;
        }
        written
    }
}

/// Splits what arrives on one stream into lines.
pub(super) struct Lines {
    limit: usize,
    line: Vec<u8>,
    cut: bool,
    frame: fn(String, bool) -> Frame,
}

impl Lines {
    pub(super) fn new(limit: u64, frame: fn(String, bool) -> Frame) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).max(1);
        Self { limit, line: Vec::new(), cut: false, frame }
    }

    pub(super) fn take(&mut self, bytes: &[u8], writer: &mut Writer) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = piece.strip_suffix(b"\n");
            let (text, is_whole) = (text.unwrap_or(piece), text.is_some());
            let room = self.limit.saturating_sub(self.line.len()).min(text.len());
            self.cut |= room < text.len();
            self.line.extend(&text[..room]);
            if is_whole {
                self.end_line(writer);
            }
        }
    }

    /// Writes what is there of a line that has no end.
    pub(super) fn end(&mut self, writer: &mut Writer) {
        if !self.line.is_empty() {
            self.end_line(writer);
        }
    }

    fn end_line(&mut self, writer: &mut Writer) {
        let mut line = std::mem::take(&mut self.line);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        let text = String::from_utf8_lossy(&line).into_owned();
        writer.write(&(self.frame)(text, std::mem::take(&mut self.cut)));
    }
}

/// Frames and the position after each of them.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) frames: Vec<(Frame, u64)>,
    /// Where they begin; later than asked for if the bytes before are gone.
    pub(crate) from: u64,
}

/// Reads some of the frames from `position` on; none when there are no more yet. Blocks.
pub(super) fn read(dir: &Path, position: u64) -> io::Result<Read> {
    loop {
        let mut starts: Vec<u64> = std::fs::read_dir(dir)?
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix(SEGMENT)?.parse().ok())
            .collect();
        starts.sort_unstable();
        let at = starts.partition_point(|start| *start <= position).saturating_sub(1);
        let Some(start) = starts.get(at).copied() else {
            return Ok(Read { from: position, ..Read::default() });
        };
        match read_segment(&segment(dir, start), start, position.max(start)) {
            // It went while we looked.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            read => return read,
        }
    }
}

fn read_segment(path: &Path, start: u64, from: u64) -> io::Result<Read> {
    let mut file = File::open(path)?;
    file.seek(io::SeekFrom::Start(from - start))?;
    let mut reader = io::BufReader::new(file);
    let mut read = Read { frames: Vec::new(), from };
    let mut position = from;
    while position - from < READ_BYTES as u64 {
        let mut header = [0; HEADER];
        if !is_there(reader.read_exact(&mut header))? {
            break;
        }
        let [kind, length @ ..] = header;
        let mut text = vec![0; u32::from_le_bytes(length) as usize];
        if !is_there(reader.read_exact(&mut text))? {
            break;
        }
        position += (HEADER + text.len()) as u64;
        read.frames.push((Frame::of(kind, text), position));
    }
    Ok(read)
}

/// Whether it was read; the end of the file means that it is not written yet.
fn is_there(read: io::Result<()>) -> io::Result<bool> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

fn segment(dir: &Path, start: u64) -> PathBuf {
    dir.join(format!("{SEGMENT}{start}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Frame {
        Frame::Said { text: text.to_owned(), cut: false }
    }

    fn texts(read: &Read) -> Vec<&str> {
        read.frames.iter().map(|(frame, _)| frame.text()).collect()
    }

    #[test]
    fn a_reader_that_does_not_come_loses_the_oldest_and_knows_how_much() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(dir.path(), 40).unwrap();
        writer.write(&said("0"));
        let first = read(dir.path(), 0).unwrap();
        assert_eq!((texts(&first), first.frames[0].1), (vec!["0"], 6));
        assert!(read(dir.path(), 6).unwrap().frames.is_empty());
        for n in 1..20 {
            writer.write(&said(&n.to_string()));
        }
        let mut position = 6;
        let mut seen = Vec::new();
        let mut lost = 0;
        loop {
            let more = read(dir.path(), position).unwrap();
            lost += more.from - position;
            let Some((_, end)) = more.frames.last() else { break };
            position = *end;
            seen.extend(texts(&more).into_iter().map(str::to_owned));
        }
        assert_eq!(seen.last().map(String::as_str), Some("19"), "the end is there");
        assert!(seen.len() < 9, "{seen:?}");
        let kept: u64 = seen.iter().map(|text| (HEADER + text.len()) as u64).sum();
        assert_eq!(lost + 6 + kept, position, "what is gone is counted");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "two segments stay");
    }

    #[test]
    fn lines_are_frames_whatever_way_they_arrive() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(dir.path(), 1 << 20).unwrap();
        let mut lines = Lines::new(4, |text, cut| Frame::Said { text, cut });
        for piece in ["ab", "c\r\nlong", "er\n\n", "x"] {
            lines.take(piece.as_bytes(), &mut writer);
        }
        lines.end(&mut writer);
        let cut = |text: &str| Frame::Said { text: text.to_owned(), cut: true };
        let frames: Vec<_> =
            read(dir.path(), 0).unwrap().frames.into_iter().map(|(frame, _)| frame).collect();
        assert_eq!(frames, [said("abc"), cut("long"), said(""), said("x")]);
    }

    #[test]
    fn half_a_frame_is_not_there_yet() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(segment(dir.path(), 0), b"o\x03\0\0\0ab").unwrap();
        assert!(read(dir.path(), 0).unwrap().frames.is_empty());
        std::fs::write(segment(dir.path(), 0), b"o\x03\0\0\0abc").unwrap();
        assert_eq!(texts(&read(dir.path(), 0).unwrap()), ["abc"]);
    }
}
