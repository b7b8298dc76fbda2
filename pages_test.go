package dibs_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// docPages returns the text of the README and of every page below docs, by name.
func docPages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	read := func(name string) error {
		text, err := os.ReadFile(name)
		all[name] = string(text)
		return err
	}
	err := filepath.WalkDir("docs", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, ".md") {
			return err
		}
		return read(name)
	})
	if err == nil {
		err = read("README.md")
	}
	testkit.Must(t, err)
	return all
}

// exported returns the exported names of the package in a folder. A field or a method is
// named together with its type: Options.TTL.
func exported(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no Go files, %v", dir, err)
	}
	names := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		testkit.Must(t, err)
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					names[d.Name.Name] = true
				} else {
					names[typeName(d.Recv.List[0].Type)+"."+d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					addSpec(names, s)
				}
			}
		}
	}
	return names
}

func addSpec(names map[string]bool, s ast.Spec) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		for _, n := range s.Names {
			names[n.Name] = true
		}
	case *ast.TypeSpec:
		names[s.Name.Name] = true
		var members *ast.FieldList
		switch t := s.Type.(type) {
		case *ast.StructType:
			members = t.Fields
		case *ast.InterfaceType:
			members = t.Methods
		default:
			return
		}
		for _, f := range members.List {
			for _, n := range f.Names {
				names[s.Name.Name+"."+n.Name] = true
			}
		}
	}
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// TestPagesNameIdentifiers: what a page names as pkg.Name or pkg.Type.Member is exported.
func TestPagesNameIdentifiers(t *testing.T) {
	packages := map[string]map[string]bool{}
	for _, name := range []string{
		"idempotency", "idempotency/retry", "jobs", "stores/memstore", "stores/sqlitestore", "stores/redisstore", "stores/pgstore", "stores/mysqlstore", "sqllock", "jobs/riverjobs", "jobs/asynqjobs", "jobs/gocronlock", "store/storetest",
	} {
		packages[path.Base(name)] = exported(t, name)
	}
	packages["dibs"] = exported(t, ".")
	named := regexp.MustCompile(`\b([a-z]+)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)
	known := 0
	for page, text := range docPages(t) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			names, ours := packages[m[1]]
			if !ours {
				continue
			}
			known++
			if !names[m[2]] || m[3] != "" && !names[m[2]+"."+m[3]] {
				t.Errorf("%s names %s, which is not exported", page, m[0])
			}
		}
	}
	if known < 100 {
		t.Errorf("only %d names were found", known)
	}
}

// TestPagesFragments: a fragment of Go on a page can be parsed, as declarations or as
// statements. If a program of the page has its first line, the program has all of it.
func TestPagesFragments(t *testing.T) {
	found := 0
	for page, text := range docPages(t) {
		for _, m := range regexp.MustCompile("(?ms)^ *```golang\n(.*?)^ *```$").FindAllStringSubmatch(text, -1) {
			found++
			_, declarations := parser.ParseFile(token.NewFileSet(), page, "package p\n"+m[1], 0)
			_, statements := parser.ParseFile(token.NewFileSet(), page, "package p\nfunc _() {\n"+m[1]+"}\n", 0)
			first, _, _ := strings.Cut(m[1], "\n")
			if strings.HasPrefix(first, "// ") && strings.Count(text, "\n"+first+"\n") > 1 && strings.Count(text, "\n"+m[1]) < 2 {
				t.Errorf("%s: the program differs from the fragment that begins with %q", page, first)
			}
			if declarations != nil && statements != nil {
				t.Errorf("%s\n%v\n%v", m[1], declarations, statements)
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d fragments were found", found)
	}
}

// TestPicturesAreShown: the pictures that the pages show are there, and there are no others.
func TestPicturesAreShown(t *testing.T) {
	shown := map[string]bool{}
	for page, text := range docPages(t) {
		for _, m := range regexp.MustCompile(`(?:\]\(|src="|srcset=")([^")]*pictures/[^")]+)`).FindAllStringSubmatch(text, -1) {
			name := filepath.Join(filepath.Dir(page), m[1])
			if _, err := os.Stat(name); err != nil {
				t.Errorf("%s: %v", page, err)
			}
			shown[name] = true
		}
	}
	names, err := filepath.Glob("docs/pictures/*")
	testkit.Must(t, err)
	for _, name := range names {
		if !shown[name] {
			t.Errorf("no page shows %s", name)
		}
	}
}

// relativeStore matches the URL of a SQLite file whose path is relative.
var relativeStore = regexp.MustCompile("sqlite:[^/$%…<`'\"|\\s][^`'\"|\\s]*")

// TestPagesNameFilesByAbsolutePaths: no page, help text or file for a deployment shows a relative
// path of a SQLite file, which every command refuses.
func TestPagesNameFilesByAbsolutePaths(t *testing.T) {
	looked := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git") {
			return cmp.Or(err, fs.SkipDir)
		}
		shows := strings.HasPrefix(path, "deploy/") || strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") ||
			strings.HasSuffix(path, ".md") || strings.HasSuffix(path, ".txt")
		if d.IsDir() || !shows {
			return nil
		}
		looked++
		for _, url := range relativeStore.FindAll(testkit.ReadFile(t, path), -1) {
			t.Errorf("%s has %s", path, url)
		}
		return nil
	})
	if err != nil || looked < 100 {
		t.Errorf("looked at %d files: %v", looked, err)
	}
}

// TestDecisionsAreShort: a decision has at most 200 words, says what else was weighed and
// what it costs, and is listed.
func TestDecisionsAreShort(t *testing.T) {
	list := testkit.ReadFile(t, "docs/design/decisions/README.md")
	names, err := filepath.Glob("docs/design/decisions/[0-9]*.md")
	testkit.Must(t, err)
	if listed := bytes.Count(list, []byte(".md) | ")); listed != len(names) {
		t.Errorf("%d decisions are listed; there are %d", listed, len(names))
	}
	for _, name := range names {
		page := testkit.ReadFile(t, name)
		if n := len(bytes.Fields(page)); n > 202 { // the mark of the heading and the number of a link
			t.Errorf("%s has %d words; at most 200", name, n)
		}
		title, _, _ := bytes.Cut(bytes.TrimPrefix(page, []byte("# ")), []byte("\n"))
		if row := fmt.Sprintf("[%s](%s) |", title, filepath.Base(name)); !bytes.Contains(list, []byte(row)) {
			t.Errorf("docs/design/decisions/README.md does not list %s by its title", name)
		}
		for _, part := range []string{"**Decided", "**Weighed.**", "**Costs.**"} {
			if !bytes.Contains(page, []byte(part)) {
				t.Errorf("%s has no %s", name, part)
			}
		}
	}
}

// TestOperatePageQuotesMessages: a message in a table of docs/operate/incidents.md is a text of the
// code, so that a reader who searches for it finds both.
func TestOperatePageQuotesMessages(t *testing.T) {
	page := testkit.ReadFile(t, "docs/operate/incidents.md")
	var code strings.Builder
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := os.ReadFile(name)
		code.Write(text)
		return err
	})
	testkit.Must(t, err)
	quoted := 0
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]*`+"`[^|]*`"+`[^|]*) \|`).FindAllStringSubmatch(string(page), -1) {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			if strings.HasPrefix(m[1], "dibs ") || strings.Count(m[1], " ") < 2 {
				continue // a command, or a word
			}
			quoted++
			for part := range strings.SplitSeq(m[1], "…") {
				if !strings.Contains(code.String(), strings.TrimSpace(part)) {
					t.Errorf("docs/operate/incidents.md quotes %q, which no program says", m[1])
				}
			}
		}
	}
	if quoted < 20 {
		t.Errorf("only %d messages were found", quoted)
	}
}

// TestArchitectureNamesFunctions: a rule of docs/design/architecture.md is where its row says.
func TestArchitectureNamesFunctions(t *testing.T) {
	rows := regexp.MustCompile("(?m) \\| `(\\w+\\.go)`, `(\\w+)` \\|$").FindAllStringSubmatch(docPages(t)["docs/design/architecture.md"], -1)
	if len(rows) < 8 {
		t.Fatalf("only %d rows were found", len(rows))
	}
	for _, row := range rows {
		text, err := os.ReadFile("store/engine/" + row[1])
		if err != nil || !regexp.MustCompile(`(?m)^func (\(.*\) )?`+row[2]+`\(`).Match(text) {
			t.Errorf("docs/design/architecture.md says that %s has %s, %v", row[1], row[2], err)
		}
	}
}

// TestTimelineOfACrash: what docs/design/architecture.md draws is what happens.
func TestTimelineOfACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, keys := time.Now(), newStore(t)
		var mu sync.Mutex
		var drawn strings.Builder // under mu
		known := ""               // under mu
		actor := strings.NewReplacer("host A", "A", "host B", "B", "store", "S")
		// say draws a message, or what an actor does alone, and the key's state if it changed.
		say := func(from, to, what string) {
			mu.Lock()
			defer mu.Unlock()
			head := "Note over " + from
			if to != "" {
				head = from + "->>" + to
			}
			fmt.Fprintf(&drawn, "    %s: %.0f s: %s\n", actor.Replace(head), time.Since(began).Seconds(), what)
			now := "free"
			for e, err := range keys.List(t.Context(), store.Query{}) {
				testkit.Must(t, err)
				if now = string(e.Condition); now == "held" {
					now += " by " + e.Runs[0].Owner.Label
				}
			}
			if now != known {
				known = now
				fmt.Fprintf(&drawn, "    Note over S: %s\n", now)
			}
		}
		// host returns a client of a host, and the line between it and the store.
		host := func(name string) (*faulty, *dibs.Client) {
			line := newFaulty(keys)
			return line, newClient(t, line, &dibs.Options{Label: name, Wait: time.Minute})
		}
		request := &dibs.AcquireOptions{MaxAge: time.Hour}

		lineA, a := host("host A")
		_, b := host("host B")
		first, err := a.Acquire(t.Context(), "key", request)
		testkit.Must(t, err)
		say("host A", "store", "Claim")
		lineA.set(nil, func(string) error { say("host A", "store", "Renew"); return nil })
		second := make(chan *dibs.Lease)
		go func() {
			l, err := b.Acquire(t.Context(), "key", request)
			testkit.Check(t, err)
			second <- l
		}()
		synctest.Wait()
		say("host B", "store", "Claim: it waits")
		time.Sleep(12 * time.Second)
		lineA.set(func(string) error { return errCut }, nil)
		say("host A", "", "crashes")
		l := <-second
		if l.Attempt() != 2 || l.Fence() <= first.Fence() {
			t.Errorf("attempt %d with the fence %d after %d", l.Attempt(), l.Fence(), first.Fence())
		}
		say("store", "host B", "its turn, because the lease ran out: attempt 2, a higher fence")
		time.Sleep(3 * time.Second)
		testkit.Must(t, l.Complete(t.Context(), []byte("answer"), time.Hour))
		say("host B", "store", "Keep, with the answer")
		time.Sleep(5 * time.Second)
		_, again := host("host A")
		var done *dibs.DoneError
		if _, err := again.Acquire(t.Context(), "key", request); !errors.As(err, &done) || string(done.Record.Data) != "answer" {
			t.Error(err)
		}
		say("host A", "store", "Claim: the record answers")
		page := string(testkit.ReadFile(t, "docs/design/architecture.md"))
		if !strings.Contains(page, "\n    participant B as host B\n"+drawn.String()+"```\n") {
			t.Errorf("docs/design/architecture.md does not draw what happens:\n%s", drawn.String())
		}
	})
}
