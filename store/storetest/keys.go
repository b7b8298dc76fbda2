package storetest

import (
	"strings"

	"github.com/dibs-go/dibs/store"
)

// distinctKeys returns keys that some backend has taken for one another.
func distinctKeys() []store.Key {
	var every strings.Builder
	for i := range store.MaxKey {
		every.WriteByte(byte(i))
	}
	most := strings.Repeat("k", store.MaxKey-1)
	keys := []store.Key{
		{Namespace: "a", Name: "b/c"}, {Namespace: "a/b", Name: "c"}, // joined by a slash
		{Namespace: "a", Name: "b:c"}, {Namespace: "a:b", Name: "c"},
		{Namespace: "", Name: "a:b"}, {Namespace: "a", Name: "b"},
		{Namespace: "", Name: "ab"}, {Namespace: "ab", Name: "c"}, {Namespace: "a", Name: "bc"},
		{Namespace: "A", Name: "b"}, {Namespace: "{a}", Name: "b"},
		{Namespace: strings.Repeat("n", store.MaxNamespace), Name: "k"},
		{Namespace: strings.Repeat("n", store.MaxNamespace-1), Name: "k"},
	}
	for _, name := range []string{
		every.String(),               // all bytes, twice
		every.String()[1:] + "\n",    // the same but for its ends
		most + "1", most + "2", most, // the last byte
		strings.Repeat("k", 255), strings.Repeat("k", 256), strings.Repeat("k", 254), // columns of 255
		strings.Repeat("K", 255) + "a", strings.Repeat("K", 255) + "b",
		"key", "Key", "KEY", // case
		"key ", " key", "key  ", "key\t", // padding
		"\x00", "\x00\x00", "key\x00", "key\x00a", "key\x00b", // C strings
		"\u00e9", "e\u0301", "e", "\u00c9", // accents, composed and not
		"\u00df", "ss", "\ufb01", "fi", // letters that collate as two
		"\xff", "\xfe", "\xff\xfe", "\xc3", "\xc3\x28", "\ufffd", // not UTF-8, and what it is replaced by
		"k%", "k_", "k*", "k?", "[k]", "{k}", "{k}1", // patterns and hash tags
		"k'", "k''", `k"`, `k\`, `k\\`, "k;--", // quoting
		"1", "01", "1.0", "0x1", "NULL", "null", // numbers and nothing
		".", "..", "/", "//", "a/b", "a//b", // paths
		"key\n", "key\r\n", "key\r",
	} {
		keys = append(keys, key(name))
	}
	return keys
}

var keysProperties = []Property{
	property("KeysAreDistinct",
		"Keys are bytes. If a backend truncates, folds, trims, normalises or joins keys, two different keys lock each other out and answer for each other.", func(t *Trial) {
			p, q := t.process(), t.process()
			keys := distinctKeys()
			claims := make([]store.Claim, len(keys))
			for i, k := range keys {
				claims[i] = lock(k, store.NewToken(), answerable)
			}
			for i, a := range p.claims(claims...) {
				if a.Err != nil || a.State != store.Granted {
					t.Errorf("the key %s in the namespace %q is taken for another: %s, %v",
						excerpt(keys[i].Name), keys[i].Namespace, stateName(a.State), a.Err)
				}
			}
			if t.Failed() {
				return
			}
			settlements := make([]store.Settlement, len(keys))
			for i, c := range claims {
				settlements[i] = store.Settlement{
					Key: c.Key, Token: c.Token, Outcome: store.Keep, Data: []byte("record " + itoa(i)), Retention: long,
				}
			}
			for i, err := range p.settlements(settlements...) {
				t.ok("keep under "+excerpt(keys[i].Name), err)
			}
			for i, k := range keys {
				t.done("a reader of "+excerpt(k.Name), q.look(k, answerable), "record "+itoa(i))
			}
		}),
	property("NamespacesNeverMeet",
		"Two applications on one backend use the same names for different things.", func(t *Trial) {
			p := t.process()
			spaces := []string{"", "a", "b", "A", "a.b", "a/", "~!{}'\"\\%_"}
			for i, ns := range spaces {
				k := store.Key{Namespace: ns, Name: "k"}
				a := store.NewToken()
				t.granted("the key in "+quoted(ns), p.try(k, a, permits(i+1), asked(ns)), 1)
				t.waits("a place in "+quoted(ns), p.reserve(k, store.NewToken(), permits(i+1), asked(ns)), 0)
			}
			for i, ns := range spaces {
				other := spaces[(i+1)%len(spaces)]
				k := store.Key{Namespace: other, Name: "k"}
				t.state("the key in "+quoted(other)+", asked as in "+quoted(ns), p.look(k, asked(ns),
					permits((i+1)%len(spaces)+1)), store.Mismatch)
			}
		}),
	property("KeysAreListedAsTheyAre",
		"The list must show each key byte for byte, because an operator uses it to release that key.", func(t *Trial) {
			p, q := t.process(), t.process()
			keys := distinctKeys()
			for _, k := range keys {
				t.granted("the key "+excerpt(k.Name), p.try(k, store.NewToken()), 1)
			}
			listed := q.list(store.Query{})
			for _, k := range keys {
				if _, ok := listed[k]; !ok {
					t.Errorf("the key %s in the namespace %q is not listed", excerpt(k.Name), k.Namespace)
				}
				if one := q.list(store.Query{Namespace: &k.Namespace, Name: k.Name}); len(one) != 1 {
					t.Errorf("a query for the key %s in the namespace %q lists %d keys", excerpt(k.Name), k.Namespace, len(one))
				}
				t.count("force release of "+excerpt(k.Name), 1)(q.inspect().ForceRelease(t.Context(), k, ""))
			}
			if len(listed) != len(keys) {
				t.Errorf("%d keys are listed, want %d", len(listed), len(keys))
			}
			if left := q.list(store.Query{}); len(left) != 0 {
				t.Errorf("%d keys are listed after all were released", len(left))
			}
		}).needs(Inspector),
}
