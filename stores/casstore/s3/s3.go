// Package s3 is the store on an object storage that speaks S3 and heeds the conditions of writes: a
// casstore.KV over HTTP. Amazon's does; casstore.Open proves it of any other.
//
//	o, err := s3.Parse("s3://bucket/locks?region=eu-central-1")
//	...
//	s, err := s3.Open(ctx, o)
//
// A key of dibs is an object. It is made with If-None-Match: *, and replaced and deleted with
// If-Match and its ETag. Requests are signed with minio-go's signer. The wall clock must be right to
// 15 minutes, or the server refuses them; nothing else depends on it.
package s3

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/signer"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/stores/casstore"
)

// Options are the settings of Open. The zero value means the defaults, but for Bucket.
type Options struct {
	Bucket string
	// Prefix begins the names of the objects; at most 200 bytes; default: none. A '/' must end it
	// if it is a folder.
	Prefix string
	// Endpoint is http:// or https:// and the host of another server than AWS's.
	Endpoint string
	// Region defaults to that of the environment, and to us-east-1.
	Region string
	// Credentials default to those of the environment, the AWS files, and the machine's role.
	Credentials *credentials.Credentials
	// Client sends the requests; default: one that gives a request 30 s.
	Client *http.Client
	// Store are the settings of the store. The default of its Tick is 1 s here.
	Store casstore.Options
}

const (
	defaultTick = time.Second
	maxPrefix   = 200
	// connections is how many connections stay open that no request uses.
	connections = 32
	// requestLimit bounds a request, so that no write is under way for longer.
	requestLimit = 30 * time.Second
	// maxTries is how often a request is sent that the server did not look at.
	maxTries = 8
	// maxAnswer bounds what is read of an answer.
	maxAnswer = 64 << 20
)

// again is the pause before that.
var again = backoff.Exponential{Min: 50 * time.Millisecond, Max: 2 * time.Second}

// Open opens the store in a bucket, which must exist.
func Open(ctx context.Context, o *Options) (*casstore.Store, error) {
	if o == nil {
		return nil, errors.New("s3: Open was given no options")
	}
	kv, err := NewKV(o)
	if err != nil {
		return nil, err
	}
	return casstore.Open(ctx, kv, &kv.o.Store)
}

// KV is a casstore.KV in a bucket. The version of an object is its ETag.
type KV struct {
	o      Options
	base   string
	client *http.Client
}

var _ casstore.KV = (*KV)(nil)

// NewKV returns the objects of a bucket.
func NewKV(o *Options) (*KV, error) {
	d, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	k := &KV{o: d, base: d.base(), client: d.Client}
	if k.client == nil {
		// A redirected request would need another signature.
		last := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConnsPerHost = connections
		k.client = &http.Client{Transport: t, Timeout: requestLimit, CheckRedirect: last}
	}
	return k, nil
}

// Close closes the connections that no request uses. It returns nil.
func (k *KV) Close() error {
	k.client.CloseIdleConnections()
	return nil
}

// Error is an answer of the server that is an error.
type Error struct {
	Status  int    // of HTTP
	Code    string // such as "AccessDenied"; "" if the server says none
	Message string

	request string
}

func (e *Error) Error() string {
	text := strings.TrimSpace(fmt.Sprintf("s3: %s is answered %d %s", e.request, e.Status, e.Code))
	if e.Message != "" {
		text += ": " + strings.TrimSuffix(e.Message, ".")
	}
	cure := cures[e.Code]
	if e.Code == "" && e.Status < 500 && e.Status != http.StatusPreconditionFailed {
		cure = notS3
	}
	if cure != "" {
		text += "; " + cure
	}
	return text
}

// notS3 says what helps against answers that no server of S3 gives.
const notS3 = "correct the endpoint, which may not be a server of S3"

// cures say what helps against errors of the set-up, by their code.
var cures = map[string]string{
	"NoSuchBucket":                 "make the bucket, or correct its name in the URL",
	"AccessDenied":                 "give the user the rights that the README of stores/casstore/s3 lists",
	"InvalidAccessKeyId":           "correct AWS_ACCESS_KEY_ID",
	"SignatureDoesNotMatch":        "correct AWS_SECRET_ACCESS_KEY",
	"ExpiredToken":                 "renew the credentials",
	"PermanentRedirect":            "set region in the URL to that of the bucket",
	"AuthorizationHeaderMalformed": "set region in the URL to that of the bucket",
	"RequestTimeTooSkewed":         "correct the clock of this host",
}

// Unwrap returns casstore.ErrConflict if the condition of a write does not hold.
func (e *Error) Unwrap() error {
	if e.Status == http.StatusPreconditionFailed || e.Code == "ConditionalRequestConflict" {
		return casstore.ErrConflict
	}
	return nil
}

// absent reports whether the error says that there is no such object.
func absent(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == http.StatusNotFound && e.Code != "NoSuchBucket"
}

// Get implements casstore.KV.
func (k *KV) Get(ctx context.Context, name string) ([]byte, string, error) {
	raw, h, err := k.do(ctx, http.MethodGet, k.o.Prefix+name, "", nil, nil)
	if absent(err) {
		return nil, "", nil
	}
	version, err := versionOf(h, err)
	return raw, version, err
}

// versionOf returns the version of the object in an answer.
func versionOf(h http.Header, err error) (string, error) {
	version := h.Get("ETag")
	if err == nil && version == "" {
		err = errors.New("s3: an object is answered without an ETag; " + notS3)
	}
	return version, err
}

// condition returns the header for a version.
func condition(version string) http.Header {
	if version == "" {
		return http.Header{"If-None-Match": {"*"}}
	}
	return http.Header{"If-Match": {version}}
}

// Put implements casstore.KV.
func (k *KV) Put(ctx context.Context, name string, value []byte, version string) (string, error) {
	_, h, err := k.do(ctx, http.MethodPut, k.o.Prefix+name, "", condition(version), value)
	if e, ok := errors.AsType[*Error](err); ok && absent(err) && (version != "" || e.Code != "") {
		return "", casstore.ErrConflict // a server that is not S3 has no code
	}
	return versionOf(h, err)
}

// Delete implements casstore.KV. There is no error if there is no object.
func (k *KV) Delete(ctx context.Context, name, version string) error {
	_, _, err := k.do(ctx, http.MethodDelete, k.o.Prefix+name, "", condition(version), nil)
	if absent(err) {
		return nil
	}
	return err
}

// List implements casstore.KV.
func (k *KV) List(ctx context.Context, prefix, after string, limit int) (names []string, err error) {
	for {
		q := url.Values{"list-type": {"2"}, "prefix": {k.o.Prefix + prefix}, "max-keys": {strconv.Itoa(limit - len(names))}}
		if after != "" {
			q.Set("start-after", k.o.Prefix+after)
		}
		raw, _, err := k.do(ctx, http.MethodGet, "", q.Encode(), nil, nil)
		if err != nil {
			return nil, err
		}
		var page struct {
			Contents    []struct{ Key string }
			IsTruncated bool
		}
		if err := xml.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("s3: the list of objects cannot be read: %w", err)
		}
		for _, c := range page.Contents {
			after = strings.TrimPrefix(c.Key, k.o.Prefix)
			names = append(names, after)
		}
		if !page.IsTruncated || len(names) >= limit || len(page.Contents) == 0 {
			return names, nil
		}
	}
}

// do sends a request, and again if the server says that it was too busy to look at it.
func (k *KV) do(ctx context.Context, method, name, query string, header http.Header, body []byte) ([]byte, http.Header, error) {
	for try := 1; ; try++ {
		raw, h, err := k.send(ctx, method, name, query, header, body)
		e, ok := errors.AsType[*Error](err)
		busy := ok && (e.Code == "SlowDown" || e.Status == http.StatusTooManyRequests)
		if !busy || try == maxTries {
			return raw, h, err
		}
		if err := again.Wait(ctx, try); err != nil {
			return nil, nil, err
		}
	}
}

func (k *KV) send(ctx context.Context, method, name, query string, header http.Header, body []byte) ([]byte, http.Header, error) {
	c, err := k.o.Credentials.GetWithContext(&credentials.CredContext{Client: k.client})
	if err != nil {
		return nil, nil, fmt.Errorf("s3: asking for credentials: %w", err)
	}
	if c.AccessKeyID == "" {
		return nil, nil, errors.New("s3: there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role")
	}
	r, err := http.NewRequestWithContext(ctx, method, k.base+"/"+name, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	r.URL.RawQuery = query
	for name, values := range header {
		r.Header[name] = values
	}
	digest := sha256.Sum256(body)
	r.Header.Set("X-Amz-Content-Sha256", hex.EncodeToString(digest[:]))
	a, err := k.client.Do(signer.SignV4(*r, c.AccessKeyID, c.SecretAccessKey, c.SessionToken, k.o.Region))
	if err != nil {
		return nil, nil, fmt.Errorf("s3: %w", cmp.Or(ctx.Err(), err)) // not the cause of the context
	}
	defer a.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(a.Body, maxAnswer))
	if err != nil {
		return nil, nil, fmt.Errorf("s3: reading the answer to %s %s: %w", method, name, cmp.Or(ctx.Err(), err))
	}
	if a.StatusCode < 300 {
		return raw, a.Header, nil
	}
	failed := &Error{Status: a.StatusCode, request: strings.TrimSpace(method + " " + name)}
	_ = xml.Unmarshal(raw, failed) // not all have a body
	return nil, nil, failed
}
