//! What goes out: written from the tree, framed by us, nothing of the agent's connection in it.

use super::support::*;

#[tokio::test]
async fn one_real_call_goes_out_and_its_result_comes_back() {
    let server = Server::saying(ok_json(r#"{"status":"in_transit"}"#)).await;
    let backend = backend(read_at(&server));
    let result = ask(&backend, r#"{"order_id":"A17"}"#).await.expect("an answer");
    assert_eq!(text(&result), r#"{"status":"in_transit"}"#);
    assert!(result.content.json);
    assert_eq!(result.head.expect("a head").status, 200);
    let heard = server.heard();
    assert_eq!(heard.len(), 1);
    assert!(heard[0].starts_with("GET /orders/A17 HTTP/1.1\r\n"), "{}", heard[0]);
}
