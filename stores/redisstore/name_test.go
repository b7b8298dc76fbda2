package redisstore

import (
	"strings"
	"testing"

	"github.com/dibs-go/dibs/store"
)

// kinds are the last letters of names; see lua/state.lua.
const kinds = "sqwrp"

// FuzzName: whatever bytes keys have, no two share a name, not even with the
// names of other parts, of another prefix and of fences; each name shows its key;
// and a cluster keeps all that belongs to a key in one slot.
func FuzzName(f *testing.F) {
	long := strings.Repeat("}{: \n\x00", store.MaxKey/6)
	for _, seed := range [][4]string{
		{"", "a", "", "b"},
		{"a", "b", "", "a b"},
		{"", " ", "", "  "},
		{"a", "b:s", "a", "b"},
		{"a", "b:s", "a", "b:r"},
		{"{", "}", "}", "{"},
		{":", ":", "", "::"},
		{"", "fence", "", ":fence"},
		{"wake:", "fence", "wake", ":fence"},
		{"", long, "", long[1:]},
		{strings.Repeat("~", store.MaxNamespace), long, strings.Repeat("~", store.MaxNamespace-1), "~ " + long[:store.MaxKey-4]},
		{"x", "\xff\xfe", "x", "\xff"},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	f.Fuzz(func(t *testing.T, ns1, name1, ns2, name2 string) {
		k1, k2 := store.Key{Namespace: ns1, Name: name1}, store.Key{Namespace: ns2, Name: name2}
		if k1.Validate() != nil || k2.Validate() != nil {
			return
		}
		taken := map[string]string{}
		take := func(name, what string) {
			t.Helper()
			if other, ok := taken[name]; ok && other != what {
				t.Fatalf("%q is the name of %s and of %s", name, other, what)
			}
			taken[name] = what
		}
		for _, prefix := range []string{"dibs", "dibs:", "dibs:fence", "d"} {
			for _, cluster := range []bool{false, true} {
				n := &namer{prefix: prefix, cluster: cluster}
				for _, k := range []store.Key{k1, k2} {
					state := n.state(k)
					tag, rest, ok := strings.Cut(strings.TrimPrefix(state, prefix+":{"), "}")
					if !ok || len(tag) != 3 || strings.ContainsAny(tag, "{}") || rest == "" {
						t.Fatalf("%q hashes as %q", state, tag)
					}
					fence, channel := n.fence(n.group(k)), n.channel(n.group(k), "0123456789abcdef")
					if cluster && (!strings.HasPrefix(fence, prefix+":{"+tag+"}:") || !strings.HasPrefix(channel, prefix+":{"+tag+"}:")) {
						t.Fatalf("%q and %q are in other slots than %q", fence, channel, state)
					}
					take(fence, "the fence "+fence)
					take(n.listed(n.group(k)), "the listed names beside "+fence)
					if listed := n.listed(n.group(k)); !n.isListed(listed) || !n.isOurs(listed) || n.isListed(fence) || n.isListed(state) {
						t.Fatalf("%q is not taken for the listed names", listed)
					}
					if !n.isFence(fence) {
						t.Fatalf("%q is not taken for a fence", fence)
					}
					for _, kind := range kinds {
						name := state[:len(state)-1] + string(kind)
						take(name, prefix+" "+k.Namespace+" "+k.Name+" "+string(kind))
						if got, ok := n.parse(name); !ok || got != k {
							t.Fatalf("%q is read as %q, %v; want %q", name, got, ok, k)
						}
						if n.isFence(name) || !n.isOurs(name) {
							t.Fatalf("%q is taken for a fence, or not for ours", name)
						}
					}
				}
			}
		}
	})
}

// TestNameOfOthers: names of other programs are not keys.
func TestNameOfOthers(t *testing.T) {
	n := &namer{prefix: "dibs"}
	for _, name := range []string{
		"", "dibs", "dibs:", "dibs:fence", "dibs:{", "dibs:{abc}:", "dibs:{abc}:x", "dibs:{abc}: :s", "dibs:{abc}:nospace:s",
		"dibs:{abc}:\x01 key:s", "dibs:{abcd}:a b:s", "other:{abc}:a b:s", "dibs:x:{abc}:a b:s",
		"dibs:{abc}:a " + strings.Repeat("x", store.MaxKey+1) + ":s",
	} {
		if k, ok := n.parse(name); ok {
			t.Errorf("%q is read as the key %q", name, k)
		}
	}
}
