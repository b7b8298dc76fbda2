package house

import (
	"go/parser"
	"go/token"
	"slices"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

func TestUncommented(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "x.go", `package x

// A is commented.
type A struct{}

type B[T any] struct{}

func (A) M()        {}
func (*B[T]) N()    {}
func (A) String() string { return "" }
func (c) O()        {}

type c struct{}

// D and E are a group.
const (
	D = 1
	E = 2
)

var F = 1

func G() {}
`, parser.ParseComments|parser.SkipObjectResolution)
	testkit.Must(t, err)
	if got, want := uncommented(file), []string{"B", "M", "N", "F", "G"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
