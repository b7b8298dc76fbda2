//go:build nightly && unix

package main

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

func init() { short = regexp.MustCompile("") }

// TestLanguagesMatrix strikes processes that use the clients at each step of each call.
func TestLanguagesMatrix(t *testing.T) {
	t.Parallel()
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			l.test(t, l.matrix, "DIBS_MATRIX=1")
		})
	}
}

// checkShop: of two requests to a shop for a charge one makes it, and a report that is being made is refused. The
// shop uses the server.
func checkShop(t *testing.T, server, shop string) {
	t.Helper()
	post := func(path string) string {
		response, err := http.DefaultClient.Do(testkit.Request(t.Context(), t, http.MethodPost, shop+path, http.NoBody))
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return fmt.Sprintf("%d %s %s%v", response.StatusCode, strings.Join(strings.Fields(string(text)), ""), response.Header.Get("Retry-After"), err)
	}
	answers := make([]string, 2)
	var both sync.WaitGroup
	for i := range answers {
		both.Go(func() { answers[i] = post("/orders/17/charge") })
	}
	both.Wait()
	slices.Sort(answers)
	first := regexp.MustCompile(`^200 (\{"charge":\d+\}) <nil>$`).FindStringSubmatch(answers[0])
	if first == nil || answers[1] != "201 "+first[1]+" <nil>" {
		t.Errorf("the answers are %q", answers)
	}
	lease, err := serveClient(t, server).Acquire(t.Context(), "report monday", nil)
	testkit.Must(t, err)
	if got := post("/reports/monday"); !strings.HasPrefix(got, "409 ") || !strings.HasSuffix(got, " 1<nil>") {
		t.Errorf("while another has the key: %s", got)
	}
	testkit.Must(t, lease.Release())
	if got := post("/reports/monday"); !regexp.MustCompile(`^200 {"fence":"?\d+"?} <nil>$`).MatchString(got) {
		t.Errorf("when the key is free: %s", got)
	}
}
