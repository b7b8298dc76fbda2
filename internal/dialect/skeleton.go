package dialect

// A skeleton is a message without what is not looked at: long texts are cut, and what is nested in
// members of the params or the result is a 0.
type skeleton struct {
	text  []byte
	depth int
	quote bool // within a string
	skip  int  // bytes of an escape that are still to come
	chars int  // of the string
}

// Bounds of a skeleton: bytes of a string, and bytes in all.
const (
	maxSkeletonText = 256
	maxSkeleton     = 64 << 10
)

// full reports whether the skeleton has too many members to be of use.
func (s *skeleton) full() bool { return len(s.text) > maxSkeleton }

// write takes the next part of the message.
func (s *skeleton) write(p []byte) {
	for _, c := range p {
		if s.full() {
			return
		}
		s.next(c)
	}
}

// next takes the next byte.
func (s *skeleton) next(c byte) {
	const kept = 2 // the message, and its params or result
	if s.quote {
		s.inString(c, s.depth <= kept)
		return
	}
	switch c {
	case '"':
		s.quote, s.chars = true, 0
	case '{', '[':
		if s.depth++; s.depth == kept+1 {
			s.text = append(s.text, '0')
		}
	case '}', ']':
		s.depth--
		if s.depth == kept {
			return
		}
	case ' ', '\t', '\r', '\n':
		return
	}
	if s.depth <= kept {
		s.text = append(s.text, c)
	}
}

// inString takes the next byte of a string. It cuts the string, but never within an escape.
func (s *skeleton) inString(c byte, kept bool) {
	switch {
	case s.skip == 0 && c == '"':
		s.quote = false
		if kept {
			s.text = append(s.text, c)
		}
		return
	case s.skip == 0 && c == '\\':
		s.skip = 1
		s.chars++
	case s.skip == 1 && c == 'u':
		s.skip = 4
	case s.skip > 0:
		s.skip--
	default:
		s.chars++
	}
	if kept && s.chars <= maxSkeletonText {
		s.text = append(s.text, c)
	}
}
