package main

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/fleetslots/dispatcher/internal/test/mutation"
)

// Draw returns random mistakes in the productFolders of root, with about the same number of each kind. Their total
// number is count. The same seed draws the same mistakes even after a file was moved, because a mistake is chosen by
// its function and its text, not by its path.
func Draw(root string, seed uint64, count int) ([]mutation.Mistake, error) {
	all, err := findSites(root, productFolders(), excludedFolders())
	if err != nil {
		return nil, err
	}
	ranked := rankSites(all, seed)
	var drawn []mutation.Mistake
	for i := 0; len(drawn) < count; i++ {
		before := len(drawn)
		for _, k := range kinds() {
			if candidates := ranked[k]; i < len(candidates) && len(drawn) < count {
				drawn = append(drawn, mutation.Mistake{Name: candidates[i].String(), Edit: candidates[i].edit, Packages: testPackages(path.Dir(candidates[i].edit.File))})
			}
		}
		if len(drawn) == before {
			break // there are fewer than count sites
		}
	}
	return drawn, nil
}

// rankSites returns, for each kind, all sites in a random order that depends only on the seed.
func rankSites(all []site, seed uint64) (sitesByKind map[Kind][]site) {
	type key struct{ function, text string }
	seen := map[key]int{} // number of sites so far with the same text in functions of the same name; the number distinguishes these sites
	order := map[Kind][]rankedSite{}
	for _, s := range all {
		k := key{s.function, s.describe()}
		seen[k]++
		sum := sha256.Sum256(fmt.Appendf(nil, "%d|%s|%s|%d", seed, k.function, k.text, seen[k]))
		order[s.kind] = append(order[s.kind], rankedSite{s, string(sum[:])})
	}
	out := map[Kind][]site{}
	for kind, list := range order {
		slices.SortStableFunc(list, func(a, b rankedSite) int { return cmp.Compare(a.sum, b.sum) })
		for _, r := range list {
			out[kind] = append(out[kind], r.site)
		}
	}
	return out
}

type rankedSite struct {
	site
	sum string
}

func productFolders() []string {
	return []string{"devices", "dispatcher", "limits", "operators", "slots", "store"}
}

// excludedFolders returns the folders that contain test machinery, in which no mistakes are made.
func excludedFolders() []string { return []string{"internal/simulator", "devices/line"} }

// testPackages returns the packages whose tests should catch a mistake in changedPackage: changedPackage itself, then the nearest package
// that imports it.
func testPackages(changedPackage string) (packages []string) {
	user := map[string]string{
		"store": "dispatcher", "slots": "dispatcher", "limits": "dispatcher", "limits/policy": "limits", "devices": "dispatcher",
		"operators": "operators/api",
	}[changedPackage]
	switch {
	case user != "":
	case strings.HasPrefix(changedPackage, "devices/"):
		user = "internal/app"
	case strings.HasPrefix(changedPackage, "dispatcher/") && !slices.Contains([]string{"api", "web", "app", "gate"}, path.Base(changedPackage)):
		user = "dispatcher"
	default:
		return []string{changedPackage}
	}
	return []string{changedPackage, user}
}
