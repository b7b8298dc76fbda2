package redisstore

import (
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// The map of this module: the core, and the one client that it is about.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{{
		Dir:     ".",
		Imports: []string{house.Root + "/store", house.Root + "/store/storekit", house.Root + "/internal/errtype", house.Root + "/internal/backoff", house.Root + "/internal/product", "github.com/redis/rueidis"},
		Tests: []string{
			house.Root, house.Root + "/store/storetest", house.Root + "/internal/prove/failpoint", house.Root + "/internal/prove/house",
			house.Root + "/internal/prove/servertest", house.Root + "/internal/prove/wire", house.Root + "/stores/internal/sqltest",
		},
	}})
}

func readme(t *testing.T) string {
	t.Helper()
	text := testkit.ReadFile(t, "README.md")
	return string(text)
}

// TestReadmeNamesAll: every URL's beginning and parameter is in the README.
func TestReadmeNamesAll(t *testing.T) {
	text := readme(t)
	for _, scheme := range Schemes() {
		if !strings.Contains(text, "`"+scheme+"://") {
			t.Errorf("it does not name %s://", scheme)
		}
	}
	for _, p := range parameters {
		if !strings.Contains(text, "`"+p.name+"=") {
			t.Errorf("it does not name %s=", p.name)
		}
	}
}

// TestReadmeRights: a user that is made as the README says can do everything, and
// has nothing to spare.
func TestReadmeRights(t *testing.T) {
	t.Parallel()
	block := regexp.MustCompile(`(?s)ACL SETUSER dibs (.*?)` + "```").FindStringSubmatch(readme(t))
	if block == nil {
		t.Fatal("it does not say how to make a user")
	}
	args := []any{"ACL", "SETUSER", "dibs"}
	rights := map[string]bool{}
	for word := range strings.FieldsSeq(strings.ReplaceAll(block[1], ">PASSWORD", ">secret")) {
		args = append(args, word)
		rights[word] = true
	}
	server := servertest.Redis(t, nil)
	server.Must(args...)
	testkit.Check(t, exerciseAll(t.Context(), open(t, "redis://dibs:secret@"+server.Addr(), nil), testkit.Limit))
	for _, right := range leastRights {
		if !rights[right] {
			t.Errorf("it does not grant %s", right)
		}
		delete(rights, right)
	}
	for right := range rights {
		switch right {
		case "on", ">secret", "resetkeys", "resetchannels", "-@all", "+publish", "+pubsub|numsub", "+subscribe":
		default:
			t.Errorf("it grants %s, which is not needed", right)
		}
	}
}
