//! The base of all HTTP clients.

use std::sync::Once;

/// Returns a builder for a client that ignores proxies of the environment, since many addresses are loopback, and follows no
/// redirects, since a token must only be sent to the host it was given for.
pub fn http_client() -> reqwest::ClientBuilder {
    static PROVIDER: Once = Once::new();
    // Fails if a provider is installed already, which is as good.
    PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy()
}
