package mutation

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// nearbyTests returns a pattern for the flag -run. It matches the tests in files whose names begin with the name of
// file: for a/claim.go, these are a/claim_test.go and a/claim_*_test.go. If there are no such tests, the pattern is
// "".
func (c *Copy) nearbyTests(file string) (pattern string, err error) {
	base, isGo := strings.CutSuffix(filepath.Join(c.dir, file), ".go")
	if !isGo {
		return "", nil
	}
	var names []string
	for _, glob := range []string{base + "_test.go", base + "_*_test.go"} {
		files, err := filepath.Glob(glob)
		if err != nil {
			return "", err
		}
		for _, f := range files {
			content, err := os.ReadFile(f)
			if err != nil {
				return "", err
			}
			for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(content, -1) {
				names = append(names, string(found[1]))
			}
		}
	}
	if len(names) == 0 {
		return "", nil
	}
	return "^(" + strings.Join(names, "|") + ")$", nil
}
