package credential

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"
	"time"
)

// SessionFor is for how long a session counts.
const SessionFor = 12 * time.Hour

// Session returns a text that opens the page for SessionFor: the time, and a keyed digest of it and
// of the credential's name, whose key is the digest of the token. A server with the same file of tokens
// can check it. It is not the token, and the token cannot be found from it.
func (c *Credential) Session(now time.Time) string {
	at := strconv.FormatInt(now.Unix(), 36)
	return at + "." + c.sign(at)
}

func (c *Credential) sign(at string) string {
	mac := hmac.New(sha256.New, c.digest[:])
	mac.Write([]byte("dibs page\x00" + c.Name + "\x00" + at))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// FindSession returns the credential of a Session, or nil. The clocks of two servers may differ by a
// minute.
func FindSession(all []*Credential, session string, now time.Time) *Credential {
	at, signed, _ := strings.Cut(session, ".")
	found := find(all, func(c *Credential) bool { return hmac.Equal([]byte(c.sign(at)), []byte(signed)) })
	seconds, err := strconv.ParseInt(at, 36, 64)
	age := now.Sub(time.Unix(seconds, 0))
	if err != nil || age >= SessionFor || age < -time.Minute {
		return nil
	}
	return found
}
