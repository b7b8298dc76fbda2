//go:build nightly

package s3_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/signer"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/casstore"
	"github.com/dibs-go/dibs/stores/casstore/s3"
)

// options are those of the store in a server's bucket.
func options(endpoint, prefix string) *s3.Options {
	return &s3.Options{
		Bucket: "dibs", Prefix: prefix, Endpoint: endpoint,
		Credentials: credentials.NewStaticV4(servertest.S3Access, servertest.S3Secret, ""),
	}
}

func newKV(t *testing.T, endpoint, prefix string) *s3.KV {
	t.Helper()
	kv, err := s3.NewKV(options(endpoint, prefix))
	testkit.Must(t, err)
	return kv
}

// TestConditionsAreAtomic: of fifty callers who write one state of an object, one does, round after
// round. All that the store promises stands on it, so this is a test of the server.
func TestConditionsAreAtomic(t *testing.T) {
	server := servertest.S3(t)
	version := ""
	for round := range 40 {
		var all sync.WaitGroup
		var won atomic.Int64
		start := make(chan struct{})
		next := make(chan string, 50)
		for i := range 50 {
			kv := newKV(t, server.URL(), "atomic/")
			all.Go(func() {
				<-start
				v, err := kv.Put(t.Context(), "object", fmt.Append(nil, round, i), version)
				switch {
				case err == nil:
					won.Add(1)
					next <- v
				case !errors.Is(err, casstore.ErrConflict):
					t.Error(err)
				}
			})
		}
		close(start)
		all.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d of 50 writes on one state were made", round, won.Load())
		}
		version = <-next
	}
}

// TestOpenRefusesServersThatIgnoreConditions: a proxy before the server drops one header, and signs
// the request again.
func TestOpenRefusesServersThatIgnoreConditions(t *testing.T) {
	server := servertest.S3(t)
	target, err := url.Parse(server.URL())
	testkit.Must(t, err)
	without := func(method, header string) string {
		proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = target.Host
			if r.In.Method == method {
				r.Out.Header.Del(header)
			}
			r.Out.Header = signer.SignV4(*r.Out, servertest.S3Access, servertest.S3Secret, "", "us-east-1").Header
		}})
		t.Cleanup(proxy.Close)
		return proxy.URL
	}
	for _, header := range []string{"If-Match", "If-None-Match"} {
		_, err := s3.Open(t.Context(), options(without(http.MethodPut, header), ""))
		if !errors.Is(err, casstore.ErrUnconditional) {
			t.Errorf("without %s: %v, want ErrUnconditional", header, err)
		}
	}
	s, err := s3.Open(t.Context(), options(without(http.MethodDelete, "If-Match"), ""))
	testkit.Must(t, err)
	defer s.Close()
	found, err := s.Check(t.Context())
	testkit.Check(t, err)
	names := ""
	for _, f := range found {
		names += f.Name + " "
	}
	if !strings.Contains(names, "deletes") {
		t.Errorf("Check of a server that ignores the condition of a delete finds %q", names)
	}
}

// TestThrottling: a proxy answers every other request as S3 does when it is asked too much. The store
// asks again, and works. That another write meets this one is a conflict.
func TestThrottling(t *testing.T) {
	server := servertest.S3(t)
	target, err := url.Parse(server.URL())
	testkit.Must(t, err)
	var asked, meets atomic.Int64
	pass := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { // the host stays, because it is signed
		r.SetURL(target)
		r.Out.Host = r.In.Host
		r.Out.Header["Accept-Encoding"] = r.In.Header["Accept-Encoding"]
	}}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut && meets.CompareAndSwap(1, 0):
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, "<Error><Code>ConditionalRequestConflict</Code><Message>The conditional request cannot succeed due to a conflicting operation against this resource.</Message></Error>")
		case asked.Add(1)%2 == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>")
		default:
			pass.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(proxy.Close)
	s, err := s3.Open(t.Context(), options(proxy.URL, ""))
	testkit.Must(t, err)
	defer s.Close()
	k, token, answers, errs := store.Key{Name: "k"}, store.NewToken(), make([]store.Answer, 1), make([]error, 1)
	testkit.Must(t, s.Claim(t.Context(), []store.Claim{{Key: k, Token: token, TTL: time.Minute, Permits: 1, Weight: 1}}, answers))
	testkit.Must(t, s.Settle(t.Context(), []store.Settlement{{Key: k, Token: token}}, errs))
	if answers[0].State != store.Granted || errs[0] != nil {
		t.Errorf("the key is %+v, and its release %v", answers[0], errs[0])
	}
	meets.Store(1)
	if _, err := newKV(t, proxy.URL, "").Put(t.Context(), "object", nil, ""); !errors.Is(err, casstore.ErrConflict) {
		t.Errorf("a write that meets another one: %v", err)
	}
}

// TestObjects: what a KV promises, of absent objects, pages of a list, and other prefixes.
func TestObjects(t *testing.T) {
	server := servertest.S3(t)
	a, b := newKV(t, server.URL(), "a/"), newKV(t, server.URL(), "b/")
	for _, name := range []string{"k/1", "k/A", "k/_", "k/a", "l/0", "clock"} {
		for _, kv := range []*s3.KV{a, b} {
			_, err := kv.Put(t.Context(), name, []byte("x"), "")
			testkit.Must(t, err)
		}
	}
	var all []string
	for after := ""; ; after = all[len(all)-1] {
		names, err := a.List(t.Context(), "k/", after, 3)
		testkit.Must(t, err)
		if all = append(all, names...); len(names) < 3 || len(all) > 10 {
			break
		}
	}
	if want := []string{"k/1", "k/A", "k/_", "k/a"}; !slices.Equal(all, want) {
		t.Errorf("the names are %q, want %q", all, want)
	}
	if raw, version, err := a.Get(t.Context(), "k/none"); raw != nil || version != "" || err != nil {
		t.Errorf("an object that is not there is %q %q, %v", raw, version, err)
	}
	if _, err := a.Put(t.Context(), "k/none", nil, `"x"`); !errors.Is(err, casstore.ErrConflict) {
		t.Errorf("replacing an object that is not there: %v", err)
	}
	_, version, err := a.Get(t.Context(), "k/1")
	testkit.Check(t, err)
	if err := a.Delete(t.Context(), "k/1", `"x"`); !errors.Is(err, casstore.ErrConflict) {
		t.Errorf("deleting another state: %v", err)
	}
	testkit.Check(t, a.Delete(t.Context(), "k/1", version))
	none := options(server.URL(), "")
	none.Bucket = "none"
	if _, err := s3.Open(t.Context(), none); err == nil || !strings.Contains(err.Error(), "NoSuchBucket") {
		t.Errorf("a bucket that is not there: %v", err)
	}
	wrong := options(server.URL(), "")
	wrong.Credentials = credentials.NewStaticV4(servertest.S3Access, "wrong", "")
	if _, err := s3.Open(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "SignatureDoesNotMatch") {
		t.Errorf("a wrong secret: %v", err)
	}
}
