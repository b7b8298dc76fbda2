package httpstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/leaseapi"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestServersAway: if no server answers, a list and a version are errors that say why, once.
func TestServersAway(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	stopping := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"title":"The store does not answer"}`))
	}))
	defer stopping.Close()
	for url, want := range map[string]string{
		gone.URL:     "refused",
		stopping.URL: "The store does not answer (503)",
		gone.URL + "," + strings.TrimPrefix(stopping.URL, "http://"): "The store does not answer (503)",
		stopping.URL + "," + strings.TrimPrefix(gone.URL, "http://"): "refused",
	} {
		s, err := Open(url, nil)
		testkit.Must(t, err)
		defer s.Close()
		check := func(what string, err error) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "httpstore: ") != 1 {
				t.Errorf("%s from %s: the error is %v; want one that says %q", what, url, err, want)
			}
		}
		_, err = s.Version(t.Context())
		check("the version", err)
		for _, err := range s.List(t.Context(), store.Query{}) {
			check("the list", err)
		}
	}
}

// TestAnOrderIsNotRepeated: an order that a server got and did not answer is an error, and the next
// order goes to another server. An order that could not be sent goes there at once.
func TestAnOrderIsNotRepeated(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer silent.Close()
	orders := 0
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		orders++
		_, _ = w.Write([]byte(`{"done":1}`))
	}))
	defer other.Close()
	s, err := Open(strings.Join([]string{gone.URL, strings.TrimPrefix(silent.URL, "http://"), strings.TrimPrefix(other.URL, "http://")}, ","), nil)
	testkit.Must(t, err)
	defer s.Close()
	key := store.Key{Name: "k"}
	if _, err := s.Forget(t.Context(), key, ""); err == nil || orders != 0 {
		t.Errorf("the first order: %v, and %d arrived at the other server", err, orders)
	}
	if done, err := s.Forget(t.Context(), key, ""); !done || err != nil {
		t.Errorf("the second order: %v, %v", done, err)
	}
}

// TestAServerThatPauses: if servers do not answer, each of them takes an equal share of the
// time, so that the next one can answer. A claim says how long that is.
func TestAServerThatPauses(t *testing.T) {
	for _, still := range []int{1, 2} {
		for verb, call := range map[string]func(context.Context, *Store) error{
			"claim": func(ctx context.Context, s *Store) error {
				return s.Claim(ctx, []store.Claim{{Key: store.Key{Name: "k"}, Token: store.Token{1}, TTL: time.Second, Permits: 1, Weight: 1}}, make([]store.Answer, 1))
			},
			"renew": func(ctx context.Context, s *Store) error {
				return s.Renew(ctx, []store.Renewal{{Key: store.Key{Name: "k"}, Token: store.Token{1}, TTL: time.Second}}, make([]error, 1))
			},
			"settle": func(ctx context.Context, s *Store) error {
				return s.Settle(ctx, []store.Settlement{{Key: store.Key{Name: "k"}, Token: store.Token{1}}}, make([]error, 1))
			},
			"list": func(ctx context.Context, s *Store) error {
				for _, err := range s.List(ctx, store.Query{}) {
					return err
				}
				return nil
			},
		} {
			t.Run(fmt.Sprintf("%s, %d", verb, still), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					asked := 0
					s, err := Open("http://a,b,c", &Options{Client: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
						if verb == "claim" {
							body, err := io.ReadAll(r.Body)
							testkit.Check(t, err)
							call, err := leaseapi.ReadClaims(body)
							testkit.Check(t, err)
							if call.Timeout != 2*time.Second {
								t.Errorf("the claim's timeout is %v", call.Timeout)
							}
						}
						if asked++; asked <= still {
							<-r.Context().Done()
							return nil, r.Context().Err()
						}
						w := httptest.NewRecorder()
						if verb != "list" {
							_, _ = w.WriteString(`{"answers":[{"state":"granted"}]}`)
						}
						return w.Result(), nil
					})}})
					testkit.Must(t, err)
					defer s.Close()
					ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
					defer cancel()
					began := time.Now()
					if err := call(ctx, s); err != nil || time.Since(began) != time.Duration(still)*2*time.Second {
						t.Errorf("after %v: %v", time.Since(began), err)
					}
					began = time.Now()
					if verb != "claim" {
						if err := call(ctx, s); err != nil || time.Since(began) != 0 {
							t.Errorf("the next call goes to a server that pauses: after %v: %v", time.Since(began), err)
						}
					}
				})
			})
		}
	}
}

// TestACallerThatGivesUp: that says nothing of the server, so the next call goes to the same one.
func TestACallerThatGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var asked []string
	s, err := Open("http://a,b", &Options{Client: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		if asked = append(asked, r.URL.Host); len(asked) == 1 {
			cancel()
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		w := httptest.NewRecorder()
		_, _ = w.WriteString(`{"answers":[{}]}`)
		return w.Result(), nil
	})}})
	testkit.Must(t, err)
	defer s.Close()
	renewals := []store.Renewal{{Key: store.Key{Name: "k"}, Token: store.Token{1}, TTL: time.Second}}
	if err := s.Renew(ctx, renewals, make([]error, 1)); err == nil {
		t.Error("it was answered")
	}
	testkit.Check(t, s.Renew(t.Context(), renewals, make([]error, 1)))
	if fmt.Sprint(asked) != "[a a]" {
		t.Errorf("asked were %v", asked)
	}
}

// TestAPlaceThatIsNotAskedForIsNotWatched: a waiter that asks no more is looked at until its place
// has ended, and not longer.
func TestAPlaceThatIsNotAskedForIsNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		s, err := Open("http://a", &Options{Client: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			body, err := io.ReadAll(r.Body)
			testkit.Check(t, err)
			call, err := leaseapi.ReadClaims(body)
			testkit.Check(t, err)
			if call.Wait > 0 {
				looks++
				time.Sleep(call.Wait)
			}
			w := httptest.NewRecorder()
			_, _ = w.WriteString(`{"answers":[{"state":"held","queued":true}]}`)
			return w.Result(), nil
		})}})
		testkit.Must(t, err)
		defer s.Close()
		defer s.Notify(func(store.Token, store.Answer) {})()
		c := store.Claim{Key: store.Key{Name: "k"}, Mode: store.Queue, Token: store.Token{1}, TTL: time.Second, PlaceTTL: 2*watchWait - time.Second, Permits: 1, Weight: 1}
		testkit.Must(t, s.Claim(t.Context(), []store.Claim{c}, make([]store.Answer, 1)))
		time.Sleep(10 * watchWait)
		synctest.Wait()
		if looks != 2 || len(s.watching) != 0 {
			t.Errorf("it was looked at %d times; left are %v", looks, s.watching)
		}
	})
}

// TestParse: a URL is read as it is meant, or refused with what is wrong, and its token is
// never in a text.
func TestParse(t *testing.T) {
	for url, want := range map[string]string{
		"https://:S3cret@dibs.internal":       "https://dibs.internal",
		"https://:S3cret@a,b:8443,[::1]:7/":   "https://a,b:8443,[::1]:7",
		"https://:S3cret%40@a":                "https://a",
		"https://:S3cret@x@a":                 "https://a",
		"http://127.0.0.1:7331":               "http://127.0.0.1:7331",
		"http+unix:/run/dibs/dibs.sock":       "http+unix:/run/dibs/dibs.sock",
		"http+unix:///run/dibs/dibs.sock":     "http+unix:/run/dibs/dibs.sock",
		"https://user:S3cret@a":               "no user",
		"https://S3cret@a":                    "no user",
		"https://:@a":                         "no user",
		"https://:S3cret%zz@a":                "not an escape",
		"https://:S3cret@":                    "is not a host",
		"https://:S3cret@a,,b":                "is not a host",
		"https://:S3cret@a/path":              "a path or a parameter",
		"https://:S3cret@a?x=1":               "a path or a parameter",
		"https://:S3cret@a b":                 "is not a host",
		"http+unix:run/dibs/dibs.sock":        "an absolute path",
		"http+unix://host/run/dibs/dibs.sock": "an absolute path",
		"http+unix:/run/dibs/dibs.sock?x=1":   "an absolute path",
		"ftp://:S3cret@a":                     "must begin with",
		":S3cret@a":                           "must begin with",
	} {
		a, err := Parse(url)
		got := ""
		if err != nil {
			if got = err.Error(); !errors.Is(err, ErrURL) {
				t.Errorf("%s: %v is not an ErrURL", url, err)
			}
		} else {
			got = a.String()
		}
		if err == nil && got != want || err != nil && !strings.Contains(got, want) {
			t.Errorf("%s: %s; want %s", url, got, want)
		}
		if strings.Contains(got, "S3cret") {
			t.Errorf("%s: the token is in %s", url, got)
		}
	}
	if a, err := Parse("https://:a%40%2Fb@host"); err != nil || a.secret != "a@/b" {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestStrangeServer: if another server than dibs serve is at the address, each call's error asks for
// that, and names what answered as far as it is known.
func TestStrangeServer(t *testing.T) {
	web := func(write func(http.ResponseWriter)) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { write(w) }))
		t.Cleanup(s.Close)
		return s.URL
	}
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	for name, test := range map[string]struct {
		url   string
		wants []string
	}{
		"closes, as Redis":        {raw(t, ""), []string{"closed the connection", "is it dibs serve?"}},
		"greets, as MySQL":        {raw(t, "J\x00\x00\x00\n8.4.3\x00"), []string{"does not speak HTTP", "is it dibs serve?"}},
		"greets, as SSH":          {raw(t, "SSH-2.0-OpenSSH_9.6\r\n"), []string{"does not speak HTTP", "OpenSSH_9.6", "is it dibs serve?"}},
		"has no such path":        {web(func(w http.ResponseWriter) { w.Header().Set("Server", "Caddy"); w.WriteHeader(404) }), []string{"not dibs serve", `404 Not Found of the server "Caddy"`, "the port"}},
		"sends elsewhere":         {web(func(w http.ResponseWriter) { w.Header().Set("Location", "/login"); w.WriteHeader(302) }), []string{"not dibs serve", "302 Found", "the port"}},
		"has a page on each path": {web(func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<!doctype html><title>App</title>") }), []string{"not dibs serve", "200 OK", "the port"}},
		"http for https":          {strings.Replace(secure.URL, "https:", "http:", 1), []string{"write https instead of http"}},
		"https for http":          {strings.Replace(web(func(http.ResponseWriter) {}), "http:", "https:", 1), []string{"does not speak TLS", "write http instead of https"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open(test.url, nil)
			testkit.Must(t, err)
			defer s.Close()
			check := func(what string, err error) {
				t.Helper()
				for _, want := range test.wants {
					if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
						t.Errorf("%s: the error is %v; want %q in it", what, err, want)
					}
				}
			}
			_, err = s.Version(t.Context())
			check("the version", err)
			for _, err := range s.List(t.Context(), store.Query{}) {
				check("the list", err)
			}
			_, err = s.Forget(t.Context(), store.Key{Name: "k"}, "")
			check("an order", err)
			check("claims", s.Claim(t.Context(), []store.Claim{{Key: store.Key{Name: "k"}, Token: store.Token{1}, TTL: 1e9, Permits: 1, Weight: 1}}, make([]store.Answer, 1)))
		})
	}
}

// raw returns the URL of a server that writes a greeting, reads a line and closes the connection.
func raw(t *testing.T, greeting string) string {
	l := testkit.Listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func(conn net.Conn) {
				defer conn.Close()
				_, _ = bufio.NewReader(conn).ReadString('\n')
				_, _ = io.WriteString(conn, greeting)
			}(conn)
		}
	}()
	return "http://" + l.Addr().String()
}
