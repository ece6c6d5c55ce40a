// Package pages reads the documentation and the names of the tests, so that tests can compare them. It compares
// no measured figures. A test of a figure belongs to the package that can measure it (see TestMemoryOfASubject in limits).
package pages

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"unicode"
)

// TestNames returns the set of the names of all tests below the folder root, including the tests of other modules.
func TestNames(root string) (exists map[string]bool, err error) {
	names := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	err = walk(root, "_test.go", func(_, text string) {
		for _, found := range declared.FindAllStringSubmatch(text, -1) {
			names[found[1]] = true
		}
	})
	return names, err
}

// Read returns the text of each page (Markdown file) below the folder root, by its path from root.
func Read(root string) (textByPath map[string]string, err error) {
	pages := map[string]string{}
	err = walk(root, ".md", func(name, text string) { pages[name] = text })
	return pages, err
}

// walk calls visit for each file below root whose name has the suffix. It leaves out hidden folders.
func walk(root, suffix string, visit func(name, text string)) error {
	tree := os.DirFS(root)
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && name != "." && strings.HasPrefix(path.Base(name), ".") {
			return fs.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(name, suffix) {
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		visit(name, string(text))
		return err
	})
	if err != nil {
		return fmt.Errorf("reading the files *%s below %s: %w", suffix, root, err)
	}
	return nil
}

// Anchors returns the set of anchors of the headings of a page, as GitHub makes them. The second of two equal headings gets the suffix -1.
func Anchors(page string) (exists map[string]bool) {
	anchors, count := map[string]bool{}, map[string]int{}
	for _, heading := range regexp.MustCompile(`(?m)^#{1,6} (.*)$`).FindAllStringSubmatch(withoutCode(page), -1) {
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, heading[1])
		if n := count[anchor]; n > 0 {
			anchors[fmt.Sprintf("%s-%d", anchor, n)] = true
		} else {
			anchors[anchor] = true
		}
		count[anchor]++
	}
	return anchors
}

// Links returns the targets of the links of a page.
func Links(page string) (targets []string) {
	for _, found := range regexp.MustCompile(`\]\(([^)\s]+)\)|(?m)^\[[^\]]+\]: (\S+)$`).FindAllStringSubmatch(withoutCode(page), -1) {
		targets = append(targets, found[1]+found[2])
	}
	return targets
}

// UndefinedReferences returns the names of links such as [text][name] for which a page has no line [name]: target.
func UndefinedReferences(page string) (names []string) {
	page = withoutCode(page)
	for _, found := range regexp.MustCompile(`\]\[([^\]]+)\]`).FindAllStringSubmatch(page, -1) {
		if !strings.Contains(page, "\n["+found[1]+"]: ") {
			names = append(names, found[1])
		}
	}
	return names
}

// withoutCode removes the blocks of code from a page.
func withoutCode(page string) string {
	return regexp.MustCompile("(?ms)^ *```.*?^ *```$").ReplaceAllString(page, "")
}
