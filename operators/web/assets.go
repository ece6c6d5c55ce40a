package web

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"net/http"
	"strings"

	"github.com/klauspost/compress/gzhttp"
	"github.com/klauspost/compress/gzip"
)

//go:embed assets
var assets embed.FS

// assetTags returns the ETag of each asset, by the path of the asset. The ETags are weak, because an asset is sent compressed to clients
// that accept it.
func assetTags() (etagByPath map[string]string) {
	tags := map[string]string{}
	err := fs.WalkDir(assets, "assets", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := assets.ReadFile(path)
		tags["/"+path] = fmt.Sprintf(`W/"%x"`, sha256.Sum256(text))
		return err
	})
	if err != nil {
		panic(err) // the assets are embedded in the program
	}
	return tags
}

// serveAssets serves the assets. It answers 304 to a browser that has the current version of an asset.
func serveAssets() http.HandlerFunc {
	tags := assetTags()
	return withCompression(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Cache-Control", "no-cache")
		if tag := tags[r.URL.Path]; tag != "" {
			rw.Header().Set("ETag", tag)
		}
		http.ServeFileFS(rw, r, assets, strings.TrimPrefix(r.URL.Path, "/"))
	})
}

// withCompression compresses the answers of next. It is for pages and assets, which are sent at once. It is not for streams and exports,
// which are sent while they are produced.
func withCompression(next http.HandlerFunc) http.HandlerFunc {
	wrap, err := gzhttp.NewWrapper(gzhttp.CompressionLevel(gzip.BestSpeed), gzhttp.EnableZstd(false))
	if err != nil {
		panic(err) // the options are constants
	}
	return wrap(next)
}
