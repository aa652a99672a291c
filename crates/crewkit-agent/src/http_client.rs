//! What every HTTP client of crewkit begins with.

use std::sync::Once;

/// A client to be set up further: it sends nothing through a proxy of the environment, since addresses here are often
/// loopback, and follows no redirect, since a token must reach nobody but the host it was given for.
pub fn http_client() -> reqwest::ClientBuilder {
    static PROVIDER: Once = Once::new();
    // Someone else may have chosen the cryptography already; theirs is as good.
    PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy()
}
