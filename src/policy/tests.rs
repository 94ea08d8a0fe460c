use super::*;
#[test]
fn shipped_policies_load() {
    for name in ["default", "demo", "quickstart", "minimal"] {
        let path = format!("{}/policies/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let e = examine(Path::new(&path), LoadOptions::default());
        println!("{}", diagnostic::pretty(&e.problems, &e.sources));
        println!("{:#?}", e.snapshot);
        assert!(e.snapshot.is_some());
    }
    println!("{:#}", json_schema::policy());
}
