package budget_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// shortestBound is the shortest bound, in seconds, that a slow machine does not reach.
const shortestBound = 20

// TestNoTestIsBoundedByTheMachine checks that no test fails because a real duration was longer than some seconds: such a
// test is red on a slow machine. Check the order of events instead, or use the virtual time of synctest. Bounds of at
// least 20 s are permitted.
func TestNoTestIsBoundedByTheMachine(t *testing.T) {
	t.Parallel()
	exceptions := []string{
		"TestBlackHoledRedisDoesNotHoldReportsUp", // a second for each of 25 reports
	}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Body != nil && !slices.Contains(exceptions, f.Name.Name) {
				for _, at := range shortBounds(f.Body) {
					t.Errorf("%s: the test fails on a slow machine", files.Position(at))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// shortBounds returns the comparisons in body that let a test fail because a measured duration exceeds a short bound.
func shortBounds(body ast.Node) (found []token.Pos) {
	var measured []string // variables with a measured duration
	isMeasured := func(n ast.Node) bool { return measures(n) || contains(n, measured...) }
	ast.Inspect(body, func(node ast.Node) bool {
		if x, ok := node.(*ast.AssignStmt); ok && measures(x.Rhs[0]) {
			if name, ok := x.Lhs[0].(*ast.Ident); ok {
				measured = append(measured, name.Name)
			}
		}
		return true
	})
	ast.Inspect(body, func(node ast.Node) bool {
		x, ok := node.(*ast.IfStmt)
		if !ok || !contains(x.Body, "Error", "Errorf", "Fatal", "Fatalf") {
			return true
		}
		ast.Inspect(x.Cond, func(node ast.Node) bool {
			if c, ok := node.(*ast.BinaryExpr); ok && (c.Op == token.GTR && isMeasured(c.X) && isShort(c.Y) || c.Op == token.LSS && isMeasured(c.Y) && isShort(c.X)) {
				found = append(found, c.Pos())
			}
			return true
		})
		return true
	})
	return found
}

// isShort reports whether a bound may be shorter than shortestBound.
func isShort(bound ast.Expr) bool {
	isLong := contains(bound, "Minute", "Hour", "patience")
	ast.Inspect(bound, func(node ast.Node) bool {
		if number, ok := node.(*ast.BasicLit); ok && contains(bound, "Second") {
			n, _ := strconv.Atoi(number.Value)
			isLong = isLong || n >= shortestBound
		}
		return true
	})
	return !isLong
}

// measures reports whether the node calls time.Since, or time.Now().Sub.
func measures(node ast.Node) (found bool) {
	ast.Inspect(node, func(node ast.Node) bool {
		if call, ok := node.(*ast.CallExpr); ok {
			if f, ok := call.Fun.(*ast.SelectorExpr); ok {
				found = found || f.Sel.Name == "Since" || f.Sel.Name == "Sub" && contains(f.X, "Now")
			}
		}
		return !found
	})
	return found
}

// contains reports whether one of the names is used in the node.
func contains(node ast.Node, names ...string) (found bool) {
	ast.Inspect(node, func(node ast.Node) bool {
		if name, ok := node.(*ast.Ident); ok && slices.Contains(names, name.Name) {
			found = true
		}
		return !found
	})
	return found
}
