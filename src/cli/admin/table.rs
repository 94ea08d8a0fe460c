//! Columns for people: as wide as their widest cell, the last one as long as it is.

use serde_json::Value;

use super::word;

/// Longest cell.
const MAX_CELL: usize = 100;

/// The list under `name`, a row a thing; then how to go on, where there is more.
pub(super) fn table(body: &Value, name: &str, columns: &[&str], none: &str) -> String {
    let empty = Vec::new();
    let things = body.get(name).and_then(Value::as_array).unwrap_or(&empty);
    if things.is_empty() {
        return none.to_owned();
    }
    let title = columns.iter().map(|column| column.to_uppercase()).collect();
    let cells = |thing: &Value| columns.iter().map(|column| cell(&word(thing, column))).collect();
    let mut rows: Vec<Vec<String>> = vec![title];
    rows.extend(things.iter().map(cells));
    let mut text = lined(&rows);
    let next = word(body, "next");
    if !next.is_empty() {
        text.push_str(&format!("there are more: --cursor {next}\n"));
    }
    text
}

fn lined(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let wide = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(wide).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// One line, without what could move a terminal's cursor.
fn cell(text: &str) -> String {
    let mut cell: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_CELL).collect();
    if text.chars().count() > MAX_CELL {
        cell.push('…');
    }
    if cell.is_empty() { "-".to_owned() } else { cell }
}

/// A thing, a member a line; what has members of its own is shown as JSON.
pub(super) fn members(thing: &Value) -> String {
    let Value::Object(members) = thing else { return thing.to_string() };
    let wide = members.keys().map(String::len).max().unwrap_or(0);
    let line = |name: &String| {
        let text: String =
            word(thing, name).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("{name:<wide$}  {}\n", if text.is_empty() { "-" } else { &text })
    };
    members.keys().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_has_columns_and_says_where_it_goes_on() {
        let body = json!({ "things": [{ "a": "x", "b": null }, { "a": "longer", "b": "\u{1b}[2J" }], "next": "7-x" });
        let text = table(&body, "things", &["a", "b"], "none");
        assert_eq!(text, "A       B\nx       -\nlonger   [2J\nthere are more: --cursor 7-x\n");
        assert_eq!(table(&json!({ "things": [] }), "things", &["a"], "none"), "none");
    }
}
