#!/usr/bin/env bash
# alicloud/nas, and createSubDir: what is there is mounted as it is, whatever the server says of
# making it.
chapter "nas"
LIMIT=60 says "guest: knfsd serves" '' quietly once start_nfs
name_server nas.test 127.0.1.4
# /share is what the profile makes directories by way of; in /srv/nfs-squash a node's root may make
# nothing.
mkdir -p /share /srv/nfs-squash
mount -t tmpfs share /share
mount -t tmpfs squash /srv/nfs-squash
mkdir -p /share/there /srv/nfs/there /srv/nfs-squash/there
echo squashed >/srv/nfs-squash/there/data
cat >>/etc/exports <<'EXPORTS'
/share *(rw,sync,no_root_squash,insecure,no_subtree_check,fsid=4)
/srv/nfs-squash *(rw,sync,root_squash,insecure,no_subtree_check,fsid=5)
EXPORTS
says "guest: nas: more is exported" '' exportfs -ra
install_driver nfs '{}'

nas_of() {
    printf '"server":"nas.test","path":"%s","vers":"%s","connectTimeout":"1"' "$1" "$2"
}

for version in 3 4.0; do
    vendor=alicloud
    install_driver nas '{}'
    # Above it there is no export (3), or a root of the server's making that nobody can write to
    # (4).
    says "guest: nas v$version: a directory below no export" "$ok" set_up one nas "$(nas_of /srv/nfs/there "$version")"
    says "guest: nas v$version: written" '' in_volume one nas write "by$version" data
    says "guest: nas v$version: by the server" data cat "/srv/nfs/there/by$version"
    says "guest: nas v$version: unmounted" "$ok" tear_down one nas
    says "guest: nas v$version: an export itself" "$ok" set_up one nas "$(nas_of /srv/nfs "$version")"
    says "guest: nas v$version: it is unmounted" "$ok" tear_down one nas
    says "guest: nas v$version: where root is squashed" "$ok" \
        set_up one nas "$(nas_of /srv/nfs-squash/there "$version")"
    says "guest: nas v$version: read" squashed in_volume one nas cat data
    says "guest: nas v$version: squashed, unmounted" "$ok" tear_down one nas
    says "guest: nas v$version: missing where root is squashed" '*"Failure"*nfs-squash/none*' \
        set_up one nas "$(nas_of /srv/nfs-squash/none "$version")"
    says "guest: nas v$version: below share" "$ok" set_up one nas "$(nas_of /share/there "$version")"
    says "guest: nas v$version: below share, unmounted" "$ok" tear_down one nas
    says "guest: nas v$version: one that is missing is made" "$ok" \
        set_up one nas "$(nas_of "/share/new$version/a b" "$version"),\"mode\":\"750\""
    says "guest: nas v$version: with its mode" 750 stat -c %a "/share/new$version/a b"
    says "guest: nas v$version: what was made is written" '' in_volume one nas write data made
    says "guest: nas v$version: by the server, there" made cat "/share/new$version/a b/data"
    says "guest: nas v$version: it is let go" "$ok" tear_down one nas
    vendor=example
    squashed="\"server\":\"nas.test\",\"path\":\"/srv/nfs-squash\",\"version\":\"$version\",\"createSubDir\":\"true\""
    says "guest: nfs v$version: createSubDir where root is squashed" "$ok" \
        set_up one nfs "$squashed,\"subDir\":\"there\""
    says "guest: nfs v$version: read there" squashed in_volume one nfs cat data
    says "guest: nfs v$version: unmounted there" "$ok" tear_down one nfs
    says "guest: nfs v$version: nothing can be made there" '*"Failure"*make*none*' \
        set_up one nfs "$squashed,\"subDir\":\"none\""
    says "guest: nas v$version: nothing is left" '' mounted_types
done

# Of version 4 the way leads through the root of the server's making into the export.
vendor=alicloud
says "guest: nas v4.0: made below an export" "$ok" set_up one nas "$(nas_of /srv/nfs/made4 4.0)"
says "guest: nas v4.0: it is there" 755 stat -c %a /srv/nfs/made4
says "guest: nas v4.0: and unmounted" "$ok" tear_down one nas
says "guest: nas v3: nothing is exported to make it in" '*"Failure"*/srv/nfs/none*' \
    set_up one nas "$(nas_of /srv/nfs/none 3)"
vendor=example
