//! A browser without a window, spoken to by the DevTools protocol: JSON messages that end in a zero byte.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A running browser with one page.
pub struct Browser {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    session: Option<String>,
    last: u64,
    events: Vec<Value>,
    _profile: TempDir,
}

/// Where a browser is.
pub fn find() -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = ["chromium", "chromium-browser", "google-chrome"]
        .iter()
        .flat_map(|name| env::split_paths(&path).map(move |folder| folder.join(name)))
        .find(|program| program.is_file());
    let found = env::var_os("FOURTAP_CHROMIUM").map(PathBuf::from);
    found
        .or(on_path)
        .expect("a browser: install Chromium, or name one in FOURTAP_CHROMIUM")
}

impl Browser {
    pub fn start(program: &Path) -> Self {
        let profile = tempfile::tempdir().expect("a temporary folder");
        let mut process = Command::new("sh")
            // It reads requests from the third and writes answers to the fourth channel.
            .args(["-c", r#"exec "$@" 3<&0 4>&1 1>&2"#, "sh"])
            .arg(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the browser starts");
        let mut browser = Browser {
            requests: process.stdin.take().expect("piped"),
            answers: BufReader::new(process.stdout.take().expect("piped")),
            process,
            session: None,
            last: 0,
            events: vec![],
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_string);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Opens a page as a screen of this width would, by day or night.
    pub fn open(&mut self, page: &Path, width: u32, scheme: &str) {
        let metrics =
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", media);
        self.events.clear();
        let url = format!("file://{}", page.display());
        self.call("Page.navigate", json!({"url": url}));
        while !self.saw("Page.loadEventFired") {
            let event = self.read();
            self.events.push(event);
        }
    }

    /// What an expression is.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let request = json!({"expression": expression, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", request);
        assert!(
            answer.get("exceptionDetails").is_none(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Presses a key.
    pub fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            let code = if key == "Tab" { 9 } else { 40 };
            let event =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Fails if the page complained, or asked for anything but itself.
    pub fn expect_quiet(&mut self, what: &str) {
        // An answer comes after all events before it.
        self.evaluate("0");
        for event in &self.events {
            let method = event["method"].as_str().unwrap_or("");
            assert!(method != "Runtime.exceptionThrown", "{what}: {event}");
            assert!(method != "Runtime.consoleAPICalled", "{what}: {event}");
            assert!(method != "Log.entryAdded", "{what}: {event}");
            if method == "Network.requestWillBeSent" {
                let url = event["params"]["request"]["url"].as_str().unwrap_or("");
                let inside = url.starts_with("file://") && event["params"]["type"] == "Document";
                assert!(
                    inside || url.starts_with("data:"),
                    "{what}: asked for {url}"
                );
            }
        }
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut request = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        let mut bytes = request.to_string().into_bytes();
        bytes.push(0);
        self.requests
            .write_all(&bytes)
            .expect("the browser listens");
        loop {
            let mut message = self.read();
            if message["id"] == json!(self.last) {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].take();
            }
            self.events.push(message);
        }
    }

    fn read(&mut self) -> Value {
        let mut bytes = vec![];
        self.answers
            .read_until(0, &mut bytes)
            .expect("the browser answers");
        assert_eq!(bytes.pop(), Some(0), "the browser has gone");
        serde_json::from_slice(&bytes).expect("JSON")
    }

    fn saw(&self, method: &str) -> bool {
        self.events.iter().any(|event| event["method"] == method)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
