package proxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestLoadRefuses: the error names what is wrong, with its line if there is one.
func TestLoadRefuses(t *testing.T) {
	up := "--upstream=http://x"
	tests := []struct {
		text, flag string
		want       []string
	}{
		{flag: "--lease=30s", want: []string{"upstream: it is missing"}},
		{flag: up + " --lease=500ms", want: []string{"lease", "at least 1s"}},
		{flag: up + " --lease=soon", want: []string{"lease"}},
		{flag: up + " --lease=30", want: []string{`"30" is not a duration: write 30s`}},
		{flag: up + " --key-ring=", want: []string{"it is empty; leave it out"}},
		{flag: up + " --max-body=5mb", want: []string{"max-body", "KiB, MiB or GiB"}},
		{flag: up + " --max-body=8", want: []string{"max-body", "did you mean 8MiB or 8KiB?"}},
		{text: "upstream: http://x\nmax-stored: 64\n", want: []string{":2:13: max-stored: ", "did you mean 64MiB or 64KiB?"}},
		{text: "upstream: http://x\nmax-body-memory: 999\n", want: []string{":2:18: max-body-memory: ", "999MiB"}},
		{text: "upstream: http://x\n\twait: 1s\n", want: []string{":2:1: ", "there is a tab", "replace the tab by spaces"}},
		{text: "\tupstream: http://x\n", want: []string{":1:9: ", "there is a tab"}},
		{text: "upstream: http://x\nroutes:\n\t- path: /x\n", want: []string{":3:1: ", "there is a tab"}},
		{text: "upstream: http://x\nroutes:\n  -\tpath: /x\n", want: []string{":3:", "there is a tab"}},
		{text: "upstream: http://x\nstore: \"memory:\n\t\"\n", want: []string{":", "there is a tab"}},
		{flag: up + " --max-body=-1", want: []string{"max-body"}},
		{flag: up + " --max-stored=0", want: []string{"max-stored", "leave it out for the default, 1MiB"}},
		{flag: up + " --max-stored=99999999999999MiB", want: []string{"DIBS_PROXY_MAX_STORED: "}},
		{flag: up + " --scope=user", want: []string{"scope", `"user" is none of`}},
		{flag: up + " --scope=authorization,none", want: []string{"scope", "together"}},
		{flag: up + " --scope=header:", want: []string{"scope", "name is missing"}},
		{flag: up + " --key=path", want: []string{"key", "header:NAME"}},
		{flag: up + " --key=header:A,path:x", want: []string{"key", `"path:x"`}},
		{flag: up + " --cors=shop.example", want: []string{"DIBS_PROXY_CORS: ", `"shop.example"`}},
		{flag: up + " --for=nothing", want: []string{"for", `"nothing"`, "webhook"}},
		{flag: up + " --keep=2x", want: []string{"keep", `"2x"`}},
		{flag: up + " --fingerprint=key,json", want: []string{"fingerprint", "together"}},
		{flag: up + " --conflict-status=500", want: []string{"conflict-status"}},
		{flag: up + " --max-concurrent=-1", want: []string{"max-concurrent"}},
		{flag: up + " --on-oversize=drop", want: []string{"DIBS_PROXY_ON_OVERSIZE: ", `"drop"`}},
		{flag: up + " --on-crash=panic", want: []string{"on-crash", `"panic"`}},
		{flag: up + " --on-store-failure=shut", want: []string{"on-store-failure", `"shut"`}},
		{flag: up + " --fingerprint=yaml", want: []string{"DIBS_PROXY_FINGERPRINT: ", `"yaml"`}},
		{flag: up + " --methods=POST,,PUT", want: []string{"DIBS_PROXY_METHODS: ", "empty element"}},
		{flag: up + " --wait=-1s", want: []string{"wait"}},
		{flag: up + " --drain=-1s", want: []string{"drain"}},
		{flag: up + " --retention=1ms", want: []string{"retention"}},
		{text: "upstream: http://x\nscope: 'header: X-User'\n", want: []string{"scope", `" X-User" is not the name of a header`}},
		{text: "upstream: http://x\nscope: cookie:a;b\n", want: []string{"scope", `"a;b" is not the name of a cookie`}},
		{text: "upstream: http://x\nkey: 'header: X-Event'\n", want: []string{"key", `" X-Event" is not the name of a header`}},
		{text: "upstream: http://x\nkey-ring: ''\n", want: []string{":2:11: key-ring: it is empty"}},
		{text: "upstream: http://x\nroutes: [{path: ''}]\n", want: []string{"path: it is empty"}},
		{text: "upstream: http://x\nleese: 3s\n", want: []string{":2:", "leese"}},
		{text: "upstream: http://x\nlease: soon\n", want: []string{":2:", "soon"}},
		{text: "upstream: http://x\nmax-body: 5mb\n", want: []string{":2:", "max-body", "5mb"}},
		{text: "upstream: http://x\nroutes:\n  - path: /a\n    requirekey: true\n", want: []string{":4:", "requirekey"}},
		{text: "upstream: http://x\nroutes:\n  - path: a\n", want: []string{":3:", "path", "must begin with /"}},
		{text: "upstream: http://x\nroutes:\n  - path: /a*\n", want: []string{":3:", "whole segment"}},
		{text: "upstream: http://x\nroutes:\n\n  - path: /\n    lease: 1ms\n", want: []string{":5:", "lease"}},
		{text: "upstream: http://x\nrequire-key: perhaps\n", want: []string{":2:", "require-key"}},
		{text: "upstream: http://x\nmethods: [POST, {a: b}]\n", want: []string{":2:", "methods"}},
		{text: "upstream: http://x\nroutes: /a\n", want: []string{":2:", "sequence"}},
		{text: "routes:\n  - path: /a\n", want: []string{":2:", "upstream"}},
		{text: "upstream: [\n", want: []string{":1:"}},
		{text: "[a]\n", want: []string{":1:", "mapping"}},
		{text: "upstream: http://x\nroutes: [a]\n", want: []string{":2:", "mapping"}},
		{text: "upstream: http://x\nwait:\n", want: []string{":2:", "wait", "missing"}},
		{text: "upstream: http://x\nwait: [1s]\n", want: []string{":2:", "wait", "one value"}},
		{text: "upstream: http://x\nwait: 1s\n\"wait\": 2s\n", want: []string{":3:", "wait"}},
		{text: "upstream: http://x\nmethods: [POST, GET]\n", want: []string{":2:1: methods: GET cannot be guarded"}},
		{text: "upstream: ftp://x\n", want: []string{":1:11: upstream: ", "http, https or h2c"}},
		{text: "namespace: a b\nupstream: http://x\n", want: []string{":1:12: namespace: "}},
		{text: "upstream: http://x\nmax-body: 1KiB\nmax-body-memory: 1MiB\n", want: []string{":3:1: max-body-memory: ", "at least 1025KiB, which one request may need: max-stored, and what is in memory of its body"}},
		{text: "upstream: http://x\nmethods: [post]\n", want: []string{":2:", "methods", "capitals"}},
		{text: "upstream: http://x\nroutes:\n  - path: /\n    methods: [GET]\n", want: []string{":4:5: methods: GET cannot be guarded"}},
		{text: "upstream: http://x\nroutes:\n  - path: /\n    scope: []\n", want: []string{":4:5: scope: it is empty"}},
		{text: "upstream: http://x\nnot-stored: a b\n", want: []string{":2:", "not-stored", `"a b" is not the name of a header`}},
		{text: "upstream: http://x\nfingerprint-fields: ['']\n", want: []string{":2:", "fingerprint-fields", "no name"}},
		{text: "upstream: http://x\nmax-stored: 1025MiB\n", want: []string{":2:", "max-stored", "at most 1GiB"}},
		{text: "upstream: http://x\nwait: 2562047h\n", want: []string{":2:", "wait", "too long"}},
		{text: "upstream: http://x\nadmin: &a 127.0.0.1:1\n", want: []string{":2:", "admin", "write the value itself"}},
		{text: "upstream: http://x\nadmin: *a\n", want: []string{":2:", "admin", "write the value itself"}},
		{text: "upstream: http://x\nnamespace: !!str a\n", want: []string{":2:", "namespace", "write the value itself"}},
		{text: "upstream: http://x\nkeep: [2xx, &a 404]\n", want: []string{":2:", "keep", "write the value itself"}},
		{text: "upstream: http://x\nstore: memory:\n", want: []string{":2:", `may need quotes, as in store: "memory:"`}},
		{text: "upstream: http://x\n---\nwait: 1s\n", want: []string{"several documents"}},
		{text: "upstream: " + strings.Repeat("[", 1<<17), want: []string{":1:27: ", "more than 16"}},
		{text: strings.Repeat("- ", 1<<16), want: []string{":1:33: ", "more than 16"}},
		{text: strings.Repeat("- !a ", 1<<12), want: []string{":1:", "more than 16"}},
		{text: strings.Repeat("a:\n-\n", 1<<12), want: []string{":32:1: ", "more than 16"}},
		{text: strings.Repeat("a:\n- #\n", 1<<12), want: []string{":32:1: ", "more than 16"}},
		{text: strings.Repeat("--- a\n", 1<<12), want: []string{":17:1: ", "more than 16"}},
		{text: "upstream: " + strings.Repeat("!a\n- ", 1<<12), want: []string{":17:", "more than 16"}},
		{text: "#" + strings.Repeat(" ", maxFile), want: []string{"longer than 256KiB"}},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%.200s%s", test.text, test.flag), func(t *testing.T) {
			_, err := load(t, test.text, strings.Fields(test.flag)...)
			if err == nil {
				t.Fatal("nothing was wrong")
			}
			for _, want := range test.want {
				variable := "DIBS_PROXY_" + strings.ToUpper(strings.ReplaceAll(want, "-", "_")) // of a setting without a flag
				if !strings.Contains(err.Error(), want) && !strings.HasPrefix(err.Error(), variable+": ") {
					t.Errorf("the error is %q; want %q in it", err, want)
				}
			}
		})
	}
}

// TestLoadFindsEveryFault: the error has a line for each error in the file, and an inherited
// error only once.
func TestLoadFindsEveryFault(t *testing.T) {
	_, err := load(t, `upstream: http://x
leese: 3s
wait: soon
keep: 2xx
require-key: true
routes:
  - path: a
    require_key: true
  - path: /b
    speed: 1
`)
	if err == nil {
		t.Fatal("nothing was wrong")
	}
	var got []string
	for line := range strings.Lines(err.Error()) {
		_, place, _ := strings.Cut(strings.TrimSpace(line), "dibs.yaml:")
		got = append(got, place)
	}
	want := []string{
		`2:1: unknown field "leese"; did you mean "lease"?`,
		`3:7: wait: "soon" is not a duration: write 30s, 5m, 24h or 30d`,
		`7:11: path: "a" must begin with /`,
		`8:5: unknown field "require_key"; did you mean "require-key"?`,
		`10:5: unknown field "speed"`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("the faults are %q; want %q", got, want)
	}
	_, err = load(t, "upstream: http://x\nkey-per: principal\nkey: json:id\nroutes:\n  - path: /a\n")
	if err == nil || strings.Count(err.Error(), "key-per") != 1 {
		t.Errorf("an inherited fault: %v; want it once", err)
	}
}

// TestLoadStopsAfterManyFaults: a file that is not a configuration does not keep the proxy busy.
func TestLoadStopsAfterManyFaults(t *testing.T) {
	var text strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&text, "k%d: v\n", i)
	}
	_, err := load(t, text.String())
	if err == nil || strings.Count(err.Error(), "\n")+1 != maxFaults {
		t.Errorf("the error is %v; want %d lines", err, maxFaults)
	}
}

// TestFaultsHideThePassword: a fault of an upstream does not repeat its text, because it is logged.
func TestFaultsHideThePassword(t *testing.T) {
	for _, upstream := range []string{"http://u:s3cret@h/%zz", "ftp://u:s3cret@h", "u:s3cret@h", "http://u:s3cret@", "http://u:s3cret@h"} {
		if _, err := load(t, "upstream: '"+upstream+"'\n"); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: the error is %v", upstream, err)
		}
	}
}

// FuzzLoad: every text of a file gives a configuration or an error.
func FuzzLoad(f *testing.F) {
	for _, text := range []string{
		"", "a: &x 1\nb: *x\n", "? a\n: b\n", "!!str\n", "- \n", "\t", "*x", "<<: *x\n", "upstream: http://x\nroutes:\n  -\n", "routes:\n  - {}\n",
		"upstream: |\n  http://x\n", "{upstream: http://x, wait: 1s}", "wait: ~\n", "[a]: b\n", "---\n---\na: 1\n", "upstream: !x y\n", "? \n", ": a\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := load(t, text); err == nil && c.Upstream == "" && len(c.Routes) == 0 {
			t.Errorf("%q is accepted without an upstream", text)
		}
	})
}

// TestSettingsThatCannotWork: a setting that cannot work is a fault, which names the cure. The text
// after the bar is part of the fault.
func TestSettingsThatCannotWork(t *testing.T) {
	files := newPair(t)
	files.renew(t, 1)
	for _, test := range []string{
		"listen: 8080\n| write :8080",
		"listen: localhost\n| is not HOST:PORT, such as",
		"listen: 127.0.0.1\n| is not HOST:PORT",
		"listen: '::1'\n| is not HOST:PORT",
		"listen: '127.0.0.1:'\n| there is no port",
		"listen: http://127.0.0.1:8080\n| is not HOST:PORT",
		"listen: '*:8080'\n| neither an IP address",
		"listen: :65536\n| 1 to 65535",
		"listen: ':-1'\n| 1 to 65535",
		"listen: 256.0.0.1:80\n| neither an IP address",
		"admin: 9090\n| admin: \"9090\" is a port alone; write :9090",
		"admin: 127.0.0.1:99999\n| 1 to 65535",
		"listen: :8080\nadmin: 127.0.0.1:8080\n| :2:1: admin: 127.0.0.1:8080 has the port of listen",
		"listen: 127.0.0.1:8080\nadmin: localhost:8080\n| choose another port",
		"listen: 10.0.0.1:8080\nadmin: 0.0.0.0:8080\n| choose another port",
		"listen: unix:proxy.sock\n| must be absolute, as in unix:/run/dibs/proxy.sock",
		"listen: 'unix:'\n| must be absolute",
		"upstream: localhost:3000\n| did you mean http://localhost:3000?",
		"upstream: 127.0.0.1:3000/base\n| did you mean http://127.0.0.1:3000/base?",
		"upstream: '[::1]:3000'\n| did you mean http://[::1]:3000?",
		"upstream: unix:app.sock\n| must be absolute, as in unix:/run/app.sock",
		"upstream: 'unix:'\n| must be absolute",
		"listen: unix:/run/a.sock\nadmin: unix:/run/x/../a.sock\n| is the socket of listen",
		"listen: unix:/run/a.sock\nupstream: unix:/run/a.sock\n| where the proxy itself listens",
		"listen: unix:/run/a.sock\nroutes:\n  - path: /a\n    upstream: unix:///run//a.sock\n| :4:5: upstream: it is where the proxy itself listens",
		"listen: :3000\nupstream: http://localhost:3000\n| where the proxy itself listens",
		"listen: 127.0.0.1:80\nupstream: http://127.0.0.1\n| where the proxy itself listens",
		"listen: 0.0.0.0:443\nupstream: https://[::1]/base\n| where the proxy itself listens",
		"listen: app.internal:81\nupstream: h2c://App.Internal:81\n| where the proxy itself listens",
		"listen: :81\nroutes:\n  - path: /a\n    upstream: http://0.0.0.0:81\n| :4:5: upstream: it is where the proxy itself listens",
		"upstream: http://x:0\n| ports are 1 to 65535",
		"upstream: http://x:65536\n| ports are 1 to 65535",
		"routes: [{path: /a?b}]\n| write %3F for ?",
		"routes: [{path: '/a#b'}]\n| %23 for #",
		"routes: [{path: /100%}]\n| write %25",
		"routes: [{path: /a%2}]\n| write %25",
		"routes: [{path: /%zz/*}]\n| write %25",
		"routes: [{path: /%ff}]\n| is not UTF-8",
		"routes: [{path: '/a*'}]\n| write %2A",
		"routes: [{host: '*'}]\n| is not a host",
		"routes: [{host: 'a.*.example.com'}]\n| is not a host",
		"routes: [{host: '*example.com'}]\n| is not a host",
		"routes: [{host: '*.10.0.0.1'}]\n| is not a host",
		"routes: [{host: 'https://shop.example/a'}]\n| write shop.example",
		"routes: [{host: ':8080'}]\n| is not a host",
		"routes: [{host: 'a..b'}]\n| is not a host",
		"routes: [{host: 'a b'}]\n| is not a host",
		"routes: [{host: 'a:0'}]\n| 1 to 65535",
		"routes: [{host: 'a:'}]\n| without one the host is for every port",
		"routes: [{host: bücher.example}]\n| is not a host",
		"keep: 600\n| from 200 to 599",
		"keep: [2xx, 9xx]\n| from 200 to 599",
		"keep: 101\n| from 200 to 599",
		"cors: https://shop.example/\n| write https://shop.example",
		"cors: https://Shop.Example\n| write https://shop.example",
		"cors: https://shop.example:443\n| write https://shop.example",
		"cors: ['https://u@shop.example?a#b']\n| write https://shop.example",
		"cors: '*'\n| is not a page's origin",
		"cors: https://*.shop.example\n| is not a page's origin",
		"cors: 'https://a:65536'\n| is not a page's origin",
		"cors: wss://shop.example\n| is not a page's origin",
		"cors: https://bücher.example\n| is not a page's origin",
		"cors: http://127.1\n| is not a page's origin",
		"admin: :9090\nadmin-tls: true\n| admin-tls: it needs tls-cert and tls-key",
		"for: mcp\nfingerprint: json\n| fingerprint: it has no effect together with for mcp",
		"tool-windows: charge=10m\n| tool-windows: it has no effect without for mcp",
		"for: mcp\ntool-windows: charge\n| is not TOOL=DURATION",
		"for: mcp\ntool-windows: [charge=10m, refund=soon]\n| \"soon\" is not a duration",
		"for: mcp\ntool-windows: charge=500ms\n| from 1s to",
		"key: json:/params/a~order\n| is not a JSON pointer (RFC 6901): write ~0 for ~",
		"key: header:X-A|json:/a~\n| is not a JSON pointer",
		"forwarded: true\ntrusted-proxies: 10.0.0.1/8\n| write 10.0.0.0/8",
		"forwarded: true\ntrusted-proxies: [10.0.0.0/33]\n| such as 10.0.0.0/8",
		"forwarded: true\ntrusted-proxies: gateway\n| neither an IP address",
		"forwarded: true\ntrusted-proxies: '::ffff:10.0.0.0/104'\n| write 10.0.0.0/8",
		"scope: header:Host\n| remove header:Host",
		"key: header:transfer-encoding\n| name another header",
		"scope: header:Dibs-Fence\n| name another header",
		"key: header:Content-Length\n| describes the connection or the length of one message",
		"key: json:id,header:X-A|header:content_length\n| describes the connection",
		"scope: header:Content-Length\n| describes the connection",
		"scope: [credentials, header:Keep-Alive]\n| describes the connection",
		"key: header:Connection\n| describes the connection",
		"key: header:TE\n| describes the connection",
		"key: header:Upgrade\n| describes the connection",
		"key: header:Proxy-Connection\n| describes the connection",
		"key: header:Expect\n| describes the connection",
		"key: header:Date\n| differs in every try",
		"key: header:traceparent\n| differs in every try",
		"scope: header:X-Request-ID\n| differs in every try",
		"scope: header:Idempotency-Key\n| \"Idempotency-Key\" is the key, and a scope says whose the key is",
		"scope: authorization,header:x_idempotency_key\n| is the key",
		"key: header:X-Intent\nscope: header:x-intent\n| header:x-intent is the key",
		"key: json:id,header:X-A|header:X-B\nscope: [authorization, header:X-B]\n| header:X-B is the key",
		"for: mcp\nmethods: [PUT]\n| :2:1: methods: without POST no message is guarded",
		"for: mcp\nroutes: [{path: /mcp, methods: [DELETE, PUT]}]\n| methods: without POST no message",
		"admin: :9090\nadmin-tokens: /nowhere/tokens\n| :2:1: admin-tokens: there is no file /nowhere/tokens; make one: ",
		"admin: :9090\nadmin-tokens: /\n| admin-tokens: / is not a file",
		"admin: :9090\nadmin-user-header: a b\n| \"a b\" is not the name of a header field",
		"admin: :9090\nadmin-tokens: /dev/null\n| admin-tokens: /dev/null is not a file",
		"admin: :9090\nadmin-tokens: " + files.cert + "\n| admin-tokens: " + files.cert + ", line 1",
		"routes:\n  - {path: /**}\n  - {path: /a, methods: [POST]}\n| :3:6: path: the route POST /a is never used, because the route /** before it (line 2)",
		"routes:\n  - {path: /a}\n  - {path: /a}\n| never used",
		"routes:\n  - {upstream: http://y}\n  - {host: a}\n| because the route for every request before it",
	} {
		text, want, _ := strings.Cut(test, "| ")
		if !strings.Contains(text, "\nupstream: ") && !strings.HasPrefix(text, "upstream: ") {
			text += "upstream: http://x\n"
		}
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("%s\nthe fault is %v; want %q", text, err, want)
		}
	}
}

// TestSettingsThatCanWork: what looks like a contradiction and is none is not a fault.
func TestSettingsThatCanWork(t *testing.T) {
	for _, text := range []string{
		"listen: :0\nadmin: :0\n",
		"listen: 127.0.0.1:8080\nadmin: 127.0.0.2:8080\n",
		"listen: '[::1]:http'\nadmin: localhost:9090\n",
		"listen: my-host.internal.:8080\n",
		"listen: 127.0.0.1:3000\nupstream: http://127.0.0.2:3000\n",
		"listen: :3000\nupstream: http://app:3000\n",
		"trusted-proxies: [10.0.0.0/8, 127.0.0.1, 'fd00::/8']\nroutes: [{path: /a, forwarded: true}]\n",
		"for: mcp\ntool-windows: [charge=10m, 'a=b=1h']\nroutes: [{path: /hooks, for: stripe}]\n",
		"for: mcp\nkey: json:/params/arguments/id\nwait: 1m\non-crash: takeover\nerrors: problem\n",
		"for: mcp\nmethods: [PUT, POST]\nroutes: [{path: /a, guard: false, methods: [PUT]}]\n",
		"key: header:X-Request-Id\nscope: [header:X-User, header:Cookie]\n",
		"lease: 1s\nhandler-limit: 1s\nwait: 1h\n",
		"keep: [200, 404, 5xx, 599]\n",
		"cors: ['http://localhost:3000', 'https://a.example:8443', 'http://[::1]', chrome-extension://abcdef]\n",
		"guard: false\nrequire-key: true\nroutes: [{path: /a, guard: true}]\n",
		"strict-key: true\nroutes: [{path: /a, key: json:id}]\n",
		"routes: [{path: /a, guard: false, methods: [GET], connect-timeout: 1s, require-key: false}]\n",
		"routes:\n  - {path: /a, methods: POST}\n  - {path: /a}\n  - {path: /**}\n",
		"routes:\n  - {host: 'a.example:81'}\n  - {host: a.example}\n  - {host: '*.example'}\n",
		"routes:\n  - {host: '*.example.com'}\n  - {host: example.com}\n  - {host: '*.com'}\n",
		"routes:\n  - {path: /a/*}\n  - {path: /a/}\n  - {path: /a}\n  - {path: /a/**}\n",
		"routes:\n  - {path: '/*/**'}\n  - {path: '/**/*'}\n  - {path: '/**/a/**'}\n",
		"methods: [POST]\nroutes:\n  - {path: /a, methods: [PUT]}\n  - {path: /a}\n",
	} {
		if !strings.Contains(text, "upstream: ") {
			text += "upstream: http://x\n"
		}
		if _, err := load(t, text); err != nil {
			t.Errorf("%s\n%v", text, err)
		}
	}
	if _, err := load(t, "upstream: http://x\nwait: 5s\n", "--guard=false"); err != nil {
		t.Errorf("a flag that turns the guard of a file off: %v", err)
	}
}

// TestRoutesReadPathsAsOrigins: a path in another spelling, which an origin may take for that of a
// route, does not leave the route.
func TestRoutesReadPathsAsOrigins(t *testing.T) {
	named := func(name string) string {
		return newBareOrigin(t, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(name), name)).url
	}
	p := start(t, named("top"), "routes:\n  - {path: /public/**, upstream: '"+named("public")+"'}\n  - {path: /charges/**, upstream: '"+named("charges")+"'}\n")
	for path, want := range map[string]string{
		"/charges/1": "charges", "//charges/1": "charges", "/./charges/1": "charges", "/x/../charges/1": "charges", "/x/%2e%2e/charges/1": "charges",
		"/x/..%2fcharges/1": "charges", "/public/../charges/1": "charges", "/charges/../public/1": "public", "/charges//": "charges", "/chargesx": "top",
	} {
		if _, body := send(t, p.url, "POST "+path+" HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"); body != want {
			t.Errorf("%s went to %s; want %s", path, body, want)
		}
	}
	for _, path := range []string{"/a/../b", "/a//b", "/./a", "/a/.", "/a/%2e%2e/b"} {
		if _, err := parsePattern(path); err == nil || !strings.Contains(err.Error(), "paths are compared without") {
			t.Errorf("the path %s: %v", path, err)
		}
	}
}

// TestHostsOfRoutes: *. stands for one or more labels, and a route has the requests to every
// spelling of its host.
func TestHostsOfRoutes(t *testing.T) {
	for _, test := range []struct{ host, yes, no string }{
		{"*.example.com", "a.example.com a.b.example.com A.Example.COM:8080 a.example.com.", "example.com .example.com aexample.com a.example.com.evil"},
		{"*.example.com:81", "a.example.com:81", "a.example.com a.example.com:8081"},
		{"example.com", "example.com example.com:81 EXAMPLE.com.", "a.example.com example.org"},
		{"example.com:443", "example.com example.com:443", "example.com:80 example.com:8443"},
		{"[::1]:80", "[::1] [::1]:80", "[::1]:81"},
	} {
		h, err := parseHost(test.host)
		testkit.Must(t, err)
		for host := range strings.FieldsSeq(test.yes) {
			if !h.match(host) {
				t.Errorf("%s does not match %s", test.host, host)
			}
		}
		for host := range strings.FieldsSeq(test.no) {
			if h.match(host) {
				t.Errorf("%s matches %s", test.host, host)
			}
		}
	}
}

// TestMethodsOfRoutes: a route is for the methods that it sets itself, even without a host and a
// path. Inherited methods say what is guarded.
func TestMethodsOfRoutes(t *testing.T) {
	named := func(name string) string {
		return newBareOrigin(t, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(name), name)).url
	}
	p := start(t, named("top"), "methods: [PUT]\nroutes:\n  - {methods: [POST], upstream: '"+named("posts")+"'}\n  - {path: /files/a%20b, upstream: '"+named("files")+"'}\n")
	for request, want := range map[string]string{
		"POST /": "posts", "PUT /": "top", "GET /": "top", "GET /files/a%20b": "files", "GET /files/a+b": "top",
	} {
		if _, body := send(t, p.url, request+" HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"); body != want {
			t.Errorf("%s went to %s; want %s", request, body, want)
		}
	}
}
