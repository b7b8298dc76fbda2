package redisstore

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/dibs-go/dibs/store"
)

// namer makes the names of keys on the server:
//
//	PREFIX:{BUCKET}:NAMESPACE NAME:KIND
//
// A namespace has no spaces, and the kind is one letter (see lua/state.lua), so no two
// keys share a name. The bucket is three hexadecimal digits of the key's hash. Redis
// Cluster hashes the bucket, so everything of a key is in one slot, together with the
// fence that the keys of the bucket share.
type namer struct {
	prefix  string
	cluster bool
}

const hexDigits = "0123456789abcdef"

func bucket(k store.Key) [3]byte {
	h := fnv.New32a()
	h.Write([]byte(k.Namespace))
	h.Write([]byte{' '})
	h.Write([]byte(k.Name))
	sum := h.Sum32()
	sum ^= sum >> 12 // the low bits of FNV are weak
	return [3]byte{hexDigits[sum>>8&15], hexDigits[sum>>4&15], hexDigits[sum&15]}
}

// buckets returns the groups of all keys on a Cluster.
func buckets() []string {
	all := make([]string, 0, 1<<12)
	for n := range cap(all) {
		all = append(all, fmt.Sprintf("{%03x}:", n))
	}
	return all
}

// state returns the name of the key's state.
func (n *namer) state(k store.Key) string {
	b := bucket(k)
	var s strings.Builder
	s.Grow(len(n.prefix) + len(k.Namespace) + len(k.Name) + 10)
	s.WriteString(n.prefix)
	s.WriteString(":{")
	s.Write(b[:])
	s.WriteString("}:")
	s.WriteString(k.Namespace)
	s.WriteByte(' ')
	s.WriteString(k.Name)
	s.WriteString(":s")
	return s.String()
}

// queue returns the name of the sorted set of the key's places.
func (n *namer) queue(k store.Key) string { return strings.TrimSuffix(n.state(k), "s") + "q" }

// waiting returns the name of the hash of the key's places.
func (n *namer) waiting(k store.Key) string { return strings.TrimSuffix(n.state(k), "s") + "w" }

// record returns the name of the key's record.
func (n *namer) record(k store.Key) string {
	return strings.TrimSuffix(n.state(k), "s") + "r"
}

// group names the keys that one script may use: all keys, or on Redis Cluster the keys of
// one bucket.
func (n *namer) group(k store.Key) string {
	if !n.cluster {
		return ""
	}
	b := bucket(k)
	return "{" + string(b[:]) + "}:"
}

// fence returns the name of a group's highest fence.
func (n *namer) fence(group string) string { return n.prefix + ":" + group + "fence" }

// listed returns the name of a group's sorted set of states that operators look for.
func (n *namer) listed(group string) string { return n.prefix + ":" + group + "listed" }

// channel returns the name of the channel of a group and a process.
func (n *namer) channel(group, process string) string {
	return n.prefix + ":" + group + "wake:" + process
}

// pattern matches the names of one kind, for SCAN.
func (n *namer) pattern(kind byte, namespace *string) string {
	p := n.prefix + ":{???}:"
	if namespace != nil {
		p += globEscaper.Replace(*namespace) + " "
	}
	return p + "*:" + string(kind)
}

var globEscaper = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// parse returns the key of a name.
func (n *namer) parse(name string) (store.Key, bool) {
	rest, ok := strings.CutPrefix(name, n.prefix+":{")
	if !ok || len(rest) < len("000}: x:s") || rest[3:5] != "}:" {
		return store.Key{}, false
	}
	namespace, key, ok := strings.Cut(rest[5:len(rest)-2], " ")
	k := store.Key{Namespace: namespace, Name: key}
	return k, ok && k.Validate() == nil
}

// sharded tells the scripts which PUBLISH to use.
func (n *namer) sharded() string {
	if n.cluster {
		return "1"
	}
	return "0"
}

// isFence reports whether the name is that of a fence.
func (n *namer) isFence(name string) bool {
	group, ours := strings.CutPrefix(name, n.prefix+":")
	group, fence := strings.CutSuffix(group, "fence")
	if n.cluster {
		return ours && fence && len(group) == len("{000}:") && group[0] == '{' && group[4:] == "}:"
	}
	return ours && fence && group == ""
}

// isListed reports whether the name is that of a group's listed names.
func (n *namer) isListed(name string) bool {
	group, ours := strings.CutSuffix(name, "listed")
	return ours && n.isFence(group+"fence")
}

// isOurs reports whether the store makes such names.
func (n *namer) isOurs(name string) bool {
	if n.isFence(name) || n.isListed(name) {
		return true
	}
	at := len(name) - 2
	if at < 0 || name[at] != ':' || !strings.ContainsRune("sqwrp", rune(name[at+1])) {
		return false
	}
	_, ok := n.parse(name)
	return ok
}
