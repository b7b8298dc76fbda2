package dialect

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"

	"github.com/dibs-go/dibs/internal/content"
)

// Flags of frames.
const (
	compressed = 0x01
	connectEnd = 0x02
	webTrailer = 0x80
)

// lastFrame returns the content of the frame with the flag; nil if there is none. It returns an
// error if the content cannot be decompressed. Such an answer is kept, because a failure that is
// replayed does less harm than a success that runs again.
func lastFrame(body []byte, flag byte, encoding string) ([]byte, error) {
	for len(body) >= 5 {
		flags, n := body[0], int64(binary.BigEndian.Uint32(body[1:5]))
		if n > int64(len(body)-5) {
			return nil, nil
		}
		switch content := body[5 : 5+n]; {
		case flags&flag == 0:
			body = body[5+n:]
		case flags&compressed == 0:
			return content, nil
		default:
			return statusText(encoding, content)
		}
	}
	return nil, nil
}

// maxStatus is how many bytes a compressed status may have.
const maxStatus = 64 << 10

// statusText returns what a part of an answer holds that has a status.
func statusText(encoding string, part []byte) ([]byte, error) {
	if content.IsIdentity(encoding) {
		return part, nil
	}
	var text bytes.Buffer
	_, err := content.Decompress(encoding, bytes.NewReader(part), &text, maxStatus)
	return text.Bytes(), err
}

// decodeText decodes base64 in pieces that each have their own padding.
func decodeText(text []byte) (out []byte) {
	for text = bytes.TrimSpace(text); len(text) >= 4; text = text[4:] {
		var piece [3]byte
		n, err := base64.StdEncoding.Decode(piece[:], text[:4])
		if err != nil {
			return out
		}
		out = append(out, piece[:n]...)
	}
	return out
}
