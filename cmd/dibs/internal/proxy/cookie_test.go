package proxy

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestTheOriginDoesNotGetThePagesCookie: guarded or not, and however it is sent. Other cookies come as
// they were.
func TestTheOriginDoesNotGetThePagesCookie(t *testing.T) {
	o := origin(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, strings.Join(r.Header["Cookie"], "|"))
	})
	keys := 0
	for _, text := range []string{"", "guard: false\n"} {
		p := start(t, o, text)
		for _, test := range []struct{ sent, want []string }{
			{[]string{"dibs_page=s"}, nil},
			{[]string{"__Host-dibs_page=s"}, nil},
			{[]string{"a=1; dibs_page=s; b=2"}, []string{"a=1; b=2"}},
			{[]string{"dibs_page=s;b=2"}, []string{"b=2"}},
			{[]string{"a=1;dibs_page=s", "dibs_page=t", "c=\"x y\";  d"}, []string{"a=1", "c=\"x y\";  d"}},
			{[]string{"dibs_page=s; dibs_page=t; __Host-dibs_page=u"}, nil},
			{[]string{"dibs_page = s; x=1"}, []string{"x=1"}},
			{[]string{"my_dibs_page=1; dibs_pages=2; dibs_page"}, []string{"my_dibs_page=1; dibs_pages=2"}},
			{[]string{"a=dibs_page;  b=;"}, []string{"a=dibs_page;  b=;"}},
		} {
			for _, method := range []string{"GET", "POST"} {
				req := testkit.Request(t.Context(), t, method, p.url, nil)
				req.Header["Cookie"] = slices.Clone(test.sent)
				keys++
				req.Header.Set("Idempotency-Key", strconv.Itoa(keys))
				res, err := http.DefaultClient.Do(req)
				testkit.Must(t, err)
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				testkit.Must(t, err)
				if got, want := string(body), strings.Join(test.want, "|"); got != want {
					t.Errorf("%s with %q: the origin gets %q; want %q", method, test.sent, got, want)
				}
			}
		}
	}
}
