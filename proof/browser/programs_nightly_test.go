//go:build nightly

package browser

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// program returns the path of the program dibs.
func program(t *testing.T) string {
	t.Helper()
	path, err := servertest.Dibs()
	testkit.Must(t, err)
	return path
}

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// night is a store, and real programs that use it.
type night struct {
	*testing.T
	folder string
	env    []string
}

func newNight(t *testing.T) *night {
	t.Helper()
	folder := t.TempDir()
	return &night{t, folder, append(os.Environ(), "DIBS_STORE=sqlite:"+filepath.Join(folder, "dibs.db"), "PATH="+filepath.Dir(program(t))+":"+os.Getenv("PATH"))}
}

// running is a program that runs.
type running struct {
	*exec.Cmd
	out   testkit.Output
	ended chan struct{}
}

// command returns a command with the store in its environment.
func (n *night) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(n.Context(), args[0], args[1:]...)
	cmd.Env, cmd.Dir = n.env, n.folder
	return cmd
}

// begin starts a program, which ends with the test.
func (n *night) begin(args ...string) *running {
	n.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(n.Context()), args[0], args[1:]...)
	cmd.Env, cmd.Dir = n.env, n.folder
	p := &running{Cmd: cmd, ended: make(chan struct{})}
	out, err := p.StdoutPipe()
	testkit.Must(n, err)
	p.Stderr = &p.out
	testkit.Must(n, p.Start())
	go func() {
		defer close(p.ended)
		_, _ = io.Copy(&p.out, bufio.NewReader(out))
		_ = p.Wait()
	}()
	n.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.ended
	})
	return p
}

// after returns the word behind a text of what a program has printed.
func (n *night) after(p *running, text string) (word string) {
	n.Helper()
	testkit.Eventually(n, "a program prints "+text, func() bool {
		_, rest, found := strings.Cut(p.out.String(), text)
		if found && strings.ContainsAny(rest, " ,\n") {
			word = strings.FieldsFunc(rest, func(r rune) bool { return strings.ContainsRune(" ,\n", r) })[0]
		}
		return word != ""
	})
	return word
}

// proxy starts dibs proxy in front of a service. It returns its address and that of its page.
func (n *night) proxy(service *httptest.Server, flags ...string) (p *running, url, page string) {
	n.Helper()
	p = n.begin(append([]string{program(n.T), "proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--upstream", service.URL}, flags...)...)
	return p, n.after(p, "listening on "), n.after(p, "admin ")
}

// order sends the order that the customer sends.
func (n *night) order(ctx context.Context, url string) (status int, text string, err error) {
	req := testkit.Request(ctx, n, http.MethodPost, url+"/charges", strings.NewReader(`{"amount":1999}`))
	req.Host = "shop.example" // a key belongs to a host, and every proxy serves this one
	req.GetBody = nil         // because net/http would retry
	req.Header.Set("Authorization", "Bearer customer")
	req.Header.Set("Idempotency-Key", "order-17")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// metric waits until a metric of a page's server is above zero. A label is optional.
func (n *night) metric(page, name, label string) {
	n.Helper()
	testkit.Eventually(n, name+" rises", func() bool {
		resp, err := http.DefaultClient.Do(testkit.Request(n.Context(), n, http.MethodGet, page+"/metrics", nil))
		testkit.Must(n, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		testkit.Must(n, err)
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, name) && strings.Contains(line, label) && !strings.HasSuffix(line, " 0\n") {
				return true
			}
		}
		return false
	})
}

var pictures = flag.String("pictures", "", "write the pictures of the documentation to this `folder`")

// maxPicture is how many bytes a picture of the documentation may have.
const maxPicture = 100_000

// story is what a picture shows in place of what differs from run to run: ages in seconds.
type story struct {
	Since   int        `json:"since"`   // of attempts
	Waited  int        `json:"waited"`  // of waiters
	Traffic [5][30]int `json:"traffic"` // zero: the numbers of the run, as if all came at once
}

// storm is how much traffic a picture shows.
var storm = [5][30]int{
	{12, 14, 11, 9, 13, 15, 12, 14, 10, 12, 13, 11, 14, 12, 16, 13, 12, 58, 131, 164, 142, 97, 61, 32, 18, 14, 12, 13, 11, 12},
	{1, 0, 1, 0, 0, 1, 0, 2, 0, 1, 0, 0, 1, 0, 1, 0, 1, 19, 44, 61, 57, 39, 22, 9, 3, 1, 0, 1, 0, 1},
	{0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 14, 37, 46, 31, 18, 9, 4, 1, 0, 0, 1, 0, 0},
	{}, {},
}

// retries is the traffic of a customer whose requests are refused.
var retries = [5][30]int{{22: 1, 23: 1, 24: 1, 26: 1, 28: 1}, {}, {23: 1, 24: 1, 26: 1, 28: 1}, {}, {}}

// tell makes a page show a story: it reads what the server says with other names of hosts, other
// numbers of processes, other IDs and other times. An action gets the true ID.
const tell = `(story => {
  const parse = JSON.parse, stringify = JSON.stringify, real = {};
  const hosts = { 'report.sh': ['worker-1', 4711], 'archive.sh': ['worker-2', 318], 'dibs proxy': ['proxy-1', 27] };
  const ms = { since_ms: 1000 * story.since, waited: { ms: 1000 * story.waited }, age_ms: 2000, store_us: 412, fence: 1795807347441099, store: 'postgres://db/shop' };
  const id = (instead, id) => { real[instead] = id; return instead; };
  JSON.parse = text => parse(text, function (name, v) {
    if (name === 'host') return (hosts[this.label] || ['worker-1'])[0];
    if (name === 'pid') return (hosts[this.label] || [0, 4711])[1];
    if (name === 'id') return id('fence' in this || 'bytes' in this ? 'sbf3pdmkfd3owd77' : 'vin5s3zam7kjpswt', v);
    if (name === 'long') return ms.since_ms < this.long_ms ? 0 : this.waits.filter(k => (k.runs || []).length > 0).length;
    if (name === 'seen') return v.map(() => ms.waited);
    if (name === 'left_ms') return 'bytes' in this ? 86398000 : v > 0 ? 26000 : 1000 - 1000 * story.since;
    if (name === 'traffic') return story.traffic[0].some(n => n) ? story.traffic : v.map(s => s.map((_, i) => i < s.length - 1 ? 0 : s.reduce((a, b) => a + b)));
    return name in ms ? ms[name] : v;
  });
  JSON.stringify = v => stringify(v, (name, v) => name === 'id' && v in real ? real[v] : v);
})(%s)`

// pictured opens a tab for pictures of that height. They tell a story if they are written.
func pictured(t *testing.T, height int64, s story) *tab {
	t.Helper()
	if *pictures == "" {
		return newTab(t, 960, height, 1)
	}
	text, err := json.Marshal(s)
	testkit.Must(t, err)
	return newTab(t, 960, height, 1.5, fmt.Sprintf(tell, text))
}

// picture writes what the window shows, if there is a folder for it.
func (b *tab) picture(name string) {
	b.t.Helper()
	if *pictures == "" {
		return
	}
	var shot []byte
	b.run(chromedp.Evaluate("document.documentElement.style.caretColor = 'transparent'", nil), chromedp.CaptureScreenshot(&shot))
	full, err := png.Decode(bytes.NewReader(shot))
	testkit.Must(b.t, err)
	var small bytes.Buffer
	testkit.Must(b.t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, paletted(full)))
	if small.Len() > maxPicture {
		b.t.Errorf("the picture %s has %d bytes", name, small.Len())
	}
	testkit.Must(b.t, os.WriteFile(filepath.Join(*pictures, name+".png"), small.Bytes(), 0o644))
}

// paletted returns a picture with the 64 colours that it has most, which is all that text and
// lines need.
func paletted(full image.Image) *image.Paletted {
	bounds, found := full.Bounds(), map[color.RGBA]int{}
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(full.At(x, y)).(color.RGBA) }
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			found[at(x, y)]++
		}
	}
	all := make([]color.RGBA, 0, len(found))
	for c := range found {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(found[b], found[a]), cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G), cmp.Compare(a.B, b.B))
	})
	palette := color.Palette{}
	for _, c := range all[:min(len(all), 64)] {
		palette = append(palette, c)
	}
	nearest, small := map[color.RGBA]uint8{}, image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			c := at(x, y)
			i, ok := nearest[c]
			if !ok {
				i = uint8(palette.Index(c))
				nearest[c] = i
			}
			small.SetColorIndex(x, y, i)
		}
	}
	return small
}
