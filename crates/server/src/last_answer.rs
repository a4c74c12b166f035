//! An HTTP answer to a connection that is not served.

use std::time::Duration;

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Maximum time to send the answer, and to wait until the client closes the connection.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Sends an answer without reading the request, and closes the connection. `headers` consists of
/// complete header lines.
pub(crate) async fn send_last_answer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    status: StatusCode,
    headers: &str,
    words: &str,
) {
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n{headers}\r\n{words}",
        words.len()
    );
    let answering = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // The request is read and dropped. If the socket closed before the request arrives, the
        // client would get a reset and lose the answer.
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        std::io::Result::Ok(())
    };
    // A failure affects only this client.
    let _ = tokio::time::timeout(ANSWER_MAX, answering).await;
}
