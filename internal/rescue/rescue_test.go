package rescue_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

func TestPanicsAreToldAndEndNothing(t *testing.T) {
	t.Parallel()
	told := make(chan string, 1)
	tell := rescue.PanicHandler(func(doing string, p *rescue.Panic) { told <- fmt.Sprint(doing, ": ", p.Cause, " ", len(p.Stack) > 0) })
	cleaned := make(chan struct{})
	tell.Go("testing", func() {
		defer close(cleaned)
		panic("broken")
	})
	<-cleaned
	if got := <-told; got != "testing: broken true" {
		t.Errorf("told %q", got)
	}
	rescue.PanicHandler(nil).Run("testing", func() { panic("broken") })
	var group rescue.Group
	group.Go(func() error { panic("of the group") })
	if _, ok := errors.AsType[*rescue.Panic](group.Wait()); !ok {
		t.Error("a group does not say that one of it panicked")
	}
}

// TestAPanicAfterAContextEndsNothing checks a callback that runs after the end of a context, in a goroutine of the
// package context: its panic does not end the process.
func TestAPanicAfterAContextEndsNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	began := make(chan struct{})
	rescue.After(ctx, func() error {
		defer close(began)
		panic("broken")
	})
	cancel()
	<-began
}

// TestNoGoroutineEndsTheProcess checks that the packages of the server start goroutines only with this package. In
// any other goroutine, nobody would recover a panic.
func TestNoGoroutineEndsTheProcess(t *testing.T) {
	t.Parallel()
	for _, root := range []string{"cmd", "dispatcher", "devices", "limits", "migrations", "operators/api", "operators/gate", "operators/web", "slots", "store", "internal/app", "internal/coalesce", "internal/doctor", "internal/fair", "internal/reading", "internal/redisconn", "internal/throttle"} {
		err := filepath.WalkDir(filepath.Join("..", "..", root), func(path string, _ fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
				expectNoBareGoroutines(t, path)
			}
			return nil
		})
		must.Succeed(t, err)
	}
}

func expectNoBareGoroutines(t *testing.T, path string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	must.Succeed(t, err)
	bare := map[string]bool{
		"sync.WaitGroup": true, "time.AfterFunc": true, "context.AfterFunc": true, "errgroup.Group": true, "errgroup.WithContext": true,
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			t.Errorf("%s: a goroutine whose panic ends the process: use internal/rescue", files.Position(n.Pos()))
		case *ast.SelectorExpr:
			if of, ok := n.X.(*ast.Ident); ok && bare[of.Name+"."+n.Sel.Name] {
				t.Errorf("%s: %s.%s begins goroutines whose panics end the process: use internal/rescue", files.Position(n.Pos()), of.Name, n.Sel.Name)
			}
		}
		return true
	})
}
