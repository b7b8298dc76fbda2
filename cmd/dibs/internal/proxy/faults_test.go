package proxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
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
		{text: "upstream: http://x\nmax-body: 1KiB\nmax-body-memory: 1MiB\n", want: []string{":3:1: max-body-memory: ", "at least 1025KiB"}},
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
