package leaseapi

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/dibs-go/dibs/store"
)

// ClaimCall is the body of a claim.
type ClaimCall struct {
	Claims []store.Claim
	// Wait is how long the server may wait until one of the claims is not held.
	Wait time.Duration
	// Timeout is how long the caller listens for the answer, from the moment at which the server has
	// the request. After it, the server does not carry the claims to the store. 0: no limit.
	Timeout time.Duration
}

// Namespace is what a key's Namespace is if the element names none. It has no valid
// spelling, so it is never a namespace that was asked for.
const Namespace = "\x00"

var modes = map[string]store.Mode{"try": store.Try, "queue": store.Queue, "reserve": store.Reserve, "look": store.Look}

// ReadClaims reads the body of a claim.
func ReadClaims(body []byte) (c ClaimCall, err error) {
	var wait, timeout *int64
	err = read(body, fields{{"claims", list("claims", &c.Claims, readClaim)}, {"wait_ms", &wait}, {"timeout_ms", &timeout}})
	if err != nil {
		return c, err
	}
	if c.Claims == nil {
		return c, errors.New("claims is missing")
	}
	if wait != nil {
		if *wait < 0 || *wait > MaxWait.Milliseconds() {
			return c, fmt.Errorf("wait_ms is %d; it must be 0 to %d", *wait, MaxWait.Milliseconds())
		}
		c.Wait = time.Duration(*wait) * time.Millisecond
	}
	if timeout != nil {
		if *timeout < 1 {
			return c, fmt.Errorf("timeout_ms is %d; it must be at least 1", *timeout)
		}
		c.Timeout = fromMillis(*timeout)
	}
	return c, nil
}

// keyed is what all elements have: a key and a token.
type keyed struct {
	key       *text
	keyB64    *octets
	namespace *string
	token     *string
}

func (k *keyed) fields(more ...field) fields {
	own := [...]field{{"key", &k.key}, {"key_b64", &k.keyB64}, {"namespace", &k.namespace}, {"token", &k.token}}
	return slices.Concat(own[:], more)
}

func (k *keyed) values(needsToken bool) (key store.Key, token store.Token, err error) {
	key.Namespace = Namespace
	if k.namespace != nil {
		key.Namespace = *k.namespace
		if err := (store.Key{Namespace: key.Namespace, Name: "-"}).Validate(); err != nil {
			return key, token, fmt.Errorf(".namespace: %w", err)
		}
	}
	switch {
	case k.key != nil && k.keyB64 != nil:
		return key, token, errors.New(": key and key_b64 exclude each other")
	case k.key != nil:
		key.Name = string(*k.key)
	case k.keyB64 != nil:
		key.Name = string(*k.keyB64)
	}
	if n := len(key.Name); n == 0 || n > store.MaxKey {
		return key, token, fmt.Errorf(".key: it has %d bytes; it must have 1 to %d", n, store.MaxKey)
	}
	if k.token == nil {
		if needsToken {
			return key, token, errors.New(".token is missing; it is 32 hexadecimal digits, random, new for each claim")
		}
		return key, token, nil
	}
	return key, token, readHex(".token", *k.token, token[:])
}

// readHex reads digits that fill into.
func readHex(name, digits string, into []byte) error {
	if len(digits) != 2*len(into) {
		return fmt.Errorf("%s: it has %d characters; it must have %d hexadecimal digits", name, len(digits), 2*len(into))
	}
	if _, err := hex.Decode(into, []byte(digits)); err != nil {
		return fmt.Errorf("%s: it must have %d hexadecimal digits", name, 2*len(into))
	}
	return nil
}

func readClaim(d *json.Decoder, c *store.Claim) error {
	var k keyed
	var mode, from, fingerprint *string
	var ttl, placeTTL, grace, maxAge *int64
	var permits, weight *int
	var owner owner
	err := object(d, k.fields(
		field{"mode", &mode}, field{"ttl_ms", &ttl}, field{"place_ttl_ms", &placeTTL}, field{"from", &from}, field{"grace_ms", &grace},
		field{"permits", &permits}, field{"weight", &weight}, field{"fingerprint", &fingerprint}, field{"max_age_ms", &maxAge},
		field{"at_most_once", &c.AtMostOnce}, field{"owner", owner.read},
	))
	if err != nil {
		return err
	}
	c.Mode = store.Try
	if mode != nil {
		m, ok := modes[*mode]
		if !ok {
			return fmt.Errorf(".mode: it is %s; it must be try, queue, reserve or look", quote(*mode))
		}
		c.Mode = m
	}
	if c.Key, c.Token, err = k.values(c.Mode != store.Look); err != nil {
		return err
	}
	c.TTL, c.PlaceTTL, c.Permits, c.Weight = DefaultTTL, DefaultPlaceTTL, 1, 1
	if permits != nil {
		c.Permits = *permits
	}
	if weight != nil {
		c.Weight = *weight
	}
	for _, span := range []struct {
		from *int64
		into *time.Duration
	}{{ttl, &c.TTL}, {placeTTL, &c.PlaceTTL}, {grace, &c.Grace}, {maxAge, &c.MaxAge}} {
		if span.from != nil {
			*span.into = fromMillis(*span.from)
		}
	}
	if from != nil {
		if err := readHex(".from", *from, c.From[:]); err != nil {
			return err
		}
	}
	if fingerprint != nil {
		if err := readHex(".fingerprint", *fingerprint, c.Fingerprint[:]); err != nil {
			return err
		}
	}
	c.Owner = store.Owner(owner)
	return nil
}

// owner is the owner of a claim: an object with the fields of store.Owner, for people.
type owner store.Owner

func (o *owner) read(d *json.Decoder) error {
	return object(d, fields{{"host", &o.Host}, {"pid", &o.PID}, {"label", &o.Label}})
}

// fromMillis returns a duration; what is too long is the longest.
func fromMillis(ms int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	switch {
	case ms >= most:
		return math.MaxInt64
	case ms <= -most:
		return math.MinInt64
	}
	return time.Duration(ms) * time.Millisecond
}

// millis returns a duration in milliseconds, rounded up, so that what is not 0 stays so.
func millis(d time.Duration) int64 {
	n := d.Milliseconds()
	if time.Duration(n)*time.Millisecond < d {
		n++
	}
	return n
}

// The elements as they are written.
type (
	elementOut struct {
		Key       string `json:"key,omitempty"`
		KeyB64    []byte `json:"key_b64,omitempty"`
		Namespace string `json:"namespace,omitempty"`
		Token     string `json:"token,omitempty"`
	}
	claimOut struct {
		elementOut
		Mode        string    `json:"mode"`
		TTL         int64     `json:"ttl_ms,omitempty"`
		PlaceTTL    int64     `json:"place_ttl_ms,omitempty"`
		From        string    `json:"from,omitempty"`
		Grace       int64     `json:"grace_ms,omitempty"`
		Permits     int       `json:"permits,omitempty"`
		Weight      int       `json:"weight,omitempty"`
		Fingerprint string    `json:"fingerprint,omitempty"`
		MaxAge      int64     `json:"max_age_ms,omitempty"`
		AtMostOnce  bool      `json:"at_most_once,omitempty"`
		Owner       *ownerOut `json:"owner,omitempty"`
	}
	ownerOut struct {
		Host  string `json:"host,omitempty"`
		PID   int    `json:"pid,omitempty"`
		Label string `json:"label,omitempty"`
	}
)

func elementOf(k store.Key, t store.Token) elementOut {
	e := elementOut{Namespace: k.Namespace}
	if utf8.ValidString(k.Name) {
		e.Key = k.Name
	} else {
		e.KeyB64 = []byte(k.Name)
	}
	if !t.IsZero() {
		e.Token = hex.EncodeToString(t[:])
	}
	return e
}

// WriteClaims writes the body of a claim. Its claims must be valid.
func WriteClaims(call ClaimCall) []byte {
	out := make([]claimOut, len(call.Claims))
	for i, c := range call.Claims {
		o := claimOut{
			elementOut: elementOf(c.Key, c.Token), Mode: nameOf(c.Mode),
			TTL: millis(c.TTL), PlaceTTL: millis(c.PlaceTTL), Grace: millis(c.Grace), Permits: c.Permits, Weight: c.Weight,
			MaxAge: millis(c.MaxAge), AtMostOnce: c.AtMostOnce,
		}
		if !c.From.IsZero() {
			o.From = hex.EncodeToString(c.From[:])
		}
		if !c.Fingerprint.IsZero() {
			o.Fingerprint = hex.EncodeToString(c.Fingerprint[:])
		}
		if c.Owner != (store.Owner{}) {
			o.Owner = &ownerOut{c.Owner.Host, c.Owner.PID, c.Owner.Label}
		}
		out[i] = o
	}
	return marshal(struct {
		Claims  []claimOut `json:"claims"`
		Wait    int64      `json:"wait_ms,omitempty"`
		Timeout int64      `json:"timeout_ms,omitempty"`
	}{out, millis(call.Wait), millis(call.Timeout)})
}

func nameOf(m store.Mode) string {
	for name, mode := range modes {
		if mode == m {
			return name
		}
	}
	return ""
}

// marshal returns v as JSON. What this package writes can always be written.
func marshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}
