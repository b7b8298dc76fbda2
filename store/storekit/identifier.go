package storekit

// IsIdentifier reports whether SQL takes a name of at most that many bytes without quotes: a
// lower-case letter or '_', then these and digits.
func IsIdentifier(s string, most int) bool {
	for i, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', c == '_', i > 0 && '0' <= c && c <= '9':
		default:
			return false
		}
	}
	return s != "" && len(s) <= most
}
