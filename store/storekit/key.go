package storekit

import "github.com/dibs-go/dibs/store"

// AppendKey appends the form in which stores keep a key: the length of its namespace in one
// byte, the namespace, and the name. It is unique.
func AppendKey(b []byte, k store.Key) []byte {
	b = append(b, byte(len(k.Namespace)))
	b = append(b, k.Namespace...)
	return append(b, k.Name...)
}

// ParseKey reads what AppendKey wrote. It returns false for anything else.
func ParseKey(k string) (store.Key, bool) {
	if len(k) == 0 || len(k) < 2+int(k[0]) {
		return store.Key{}, false
	}
	n := 1 + int(k[0])
	return store.Key{Namespace: k[1:n], Name: k[n:]}, true
}
