//! Words of models and tools as people are shown them: plain text in which nothing is invisible. A text that hides, turns
//! around or moves what stands beside it is an attack on whoever decides by it.

/// Longest text shown of one value, characters.
const MAX_SHOWN: usize = 2000;

/// Every character that a reader could not see, or that moves others, is spelt: `⟨U+202E⟩`.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for (at, c) in text.chars().enumerate() {
        if at == MAX_SHOWN {
            shown.push_str(&format!("… ({} bytes in all)", text.len()));
            break;
        }
        match is_hidden(c) {
            true => shown.push_str(&format!("⟨U+{:04X}⟩", u32::from(c))),
            false => shown.push(c),
        }
    }
    shown
}

/// Controls, format characters and fillers (Unicode 16, `Cc`, `Cf`, `Zl`, `Zp`, `Default_Ignorable_Code_Point`), and
/// spaces that look like the ordinary one.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(u32::from(c),
            0x00a0 | 0x00ad | 0x034f | 0x061c | 0x115f | 0x1160 | 0x1680 | 0x17b4 | 0x17b5
            | 0x0600..=0x0605 | 0x06dd | 0x070f | 0x0890 | 0x0891 | 0x08e2
            | 0x180b..=0x180f | 0x2000..=0x200f | 0x2028..=0x202f | 0x205f..=0x206f
            | 0x2800 | 0x3000 | 0x3164 | 0xfe00..=0xfe0f | 0xfeff | 0xffa0 | 0xfff0..=0xfffb
            | 0x110bd | 0x110cd | 0x13430..=0x1343f | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a
            | 0xe000..=0xf8ff | 0xe0000..=0xe0fff | 0xf0000..=0x10_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_spelt_and_what_can_stays() {
        assert_eq!(visible("Grüße, 東京 🙂"), "Grüße, 東京 🙂");
        assert_eq!(visible("pay\u{202e}001\u{202c}"), "pay⟨U+202E⟩001⟨U+202C⟩");
        assert_eq!(visible("a\u{200b}b\nc\u{1b}[2J"), "a⟨U+200B⟩b⟨U+000A⟩c⟨U+001B⟩[2J");
        assert_eq!(visible("\u{e0041}\u{2066}\u{feff}"), "⟨U+E0041⟩⟨U+2066⟩⟨U+FEFF⟩");
    }

    #[test]
    fn a_text_is_shown_to_a_bound() {
        let shown = visible(&"x".repeat(MAX_SHOWN + 1));
        assert!(shown.ends_with("… (2001 bytes in all)") && shown.len() < MAX_SHOWN + 40);
        assert_eq!(visible(&"x".repeat(MAX_SHOWN)).len(), MAX_SHOWN);
    }
}
