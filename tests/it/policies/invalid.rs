//! One file a fault, and word for word what is said about it.

use checkrein::policy::diagnostic::{self, CODES};
use checkrein::policy::{LoadOptions, examine_text};

use super::{golden, root};

#[test]
fn bb_k03_every_invalid_policy_is_refused_in_exactly_these_words() {
    let folder = root().join("tests/it/fixtures/invalid");
    let mut codes = std::collections::BTreeSet::new();
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).expect("the fixtures are there") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|ext| ext != "yaml") {
            continue;
        }
        seen += 1;
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let bytes = std::fs::read(&path).expect("the fixture can be read");
        let examined = examine_text(&bytes, name, &folder, LoadOptions { offline: true });
        assert!(examined.snapshot.is_none(), "{name} is accepted");
        let text = diagnostic::pretty(&examined.problems, &examined.sources);
        for form in [
            &text,
            &diagnostic::compact(&examined.problems),
            &diagnostic::to_json(&examined.problems),
        ] {
            assert!(!form.contains("hunter"), "{name} shows a secret:\n{form}");
        }
        golden(&path.with_extension("txt"), &text);
        codes.extend(examined.problems.iter().map(|problem| problem.code));
        if let Some(own) = name.get(..6).filter(|own| own.starts_with("cr")) {
            let own = own.to_uppercase();
            let has = examined.problems.iter().any(|problem| problem.code == own);
            assert!(has, "{name} does not give {own}");
        }
    }
    assert!(seen >= 20, "only {seen} fixtures");
    for entry in CODES.iter().filter(|entry| entry.code < "CR2000") {
        assert!(codes.contains(entry.code), "no fixture gives {}", entry.code);
    }
}

#[test]
fn bb_j14_a_hundred_thousand_brackets_are_one_finding_at_once() {
    let deep = "[".repeat(100_000);
    let nested = format!("{}{}", "{a: ".repeat(100_000), "}".repeat(100_000));
    let block: String = (0..700).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    let head = "apiVersion: checkrein/v1\nkind: Policy\ntools: ";
    for text in [deep.clone(), nested, block, format!("{head}{deep}"), "- ".repeat(100_000)] {
        let began = tokio::time::Instant::now();
        let examined = super::examine(&text);
        assert!(began.elapsed().as_millis() < 1000, "slow: {:?}", began.elapsed());
        let codes: Vec<_> = examined.problems.iter().map(|p| p.code).collect();
        assert_eq!(codes, ["CR0004"], "{}", &text[..40]);
        assert!(examined.snapshot.is_none());
    }
}

#[test]
fn bb_k02_half_a_file_an_empty_one_a_tab_and_an_unknown_version_are_refused_with_their_line() {
    let whole = std::fs::read_to_string(root().join("policies/quickstart.yaml")).expect("shipped");
    assert_eq!(super::errors(&whole), [""; 0]);
    // Any beginning of the file that is cut before its agents denies.
    let agents = whole.find("agents:").expect("it has agents");
    for end in (0..agents).filter(|end| whole.is_char_boundary(*end)) {
        assert!(super::examine(&whole[..end]).snapshot.is_none(), "cut at {end}");
    }
    for (text, code) in [
        (String::new(), "CR0004:1:1"),
        ("\n# a comment\n".to_owned(), "CR0004:1:1"),
        ("~\n".to_owned(), "CR0004:1:1"),
        (whole.replace("  shop:", "\tshop:"), "CR0001:8:1"),
        (whole.replace("checkrein/v1", "checkrein/v2"), "CR1001:3:13"),
        ("x".repeat(1024 * 1024 + 1), "CR0004:1:1"),
    ] {
        assert_eq!(super::errors(&text), [code]);
    }
}

#[test]
fn an_unknown_key_with_a_huge_crowd_of_others_stays_fast_and_bounded() {
    let crowd: String = (0..100_000).map(|n| format!("k{n}: 1\n")).collect();
    let began = tokio::time::Instant::now();
    let examined = super::examine(&crowd);
    assert!(examined.snapshot.is_none());
    assert!(examined.problems.len() <= 1000);
    assert!(began.elapsed().as_secs() < 10, "slow: {:?}", began.elapsed());
}
